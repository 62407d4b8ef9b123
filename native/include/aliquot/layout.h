/* The two shared pages of a grant: limits and usage.
 *
 * `limits` says what the grant may use and which processes are in it. Every tenant maps it read-only.
 * It is a view: the arbiter writes it, from a record in a file of its own, and never reads it. `usage` is the ledger: tenants and the arbiter write it, only with the operations
 * of ledger.h.
 *
 * Both are files in the grant's directory. A tenant never opens them by path: the arbiter sends it the
 * descriptors (protocol.h).
 *
 * Guarantees: sizes and offsets are fixed for a VERSION. A reader checks magic, version and size first
 * (aliquot_limits_check, aliquot_usage_check) and refuses the page if they do not match.
 */
#ifndef ALIQUOT_LAYOUT_H
#define ALIQUOT_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ALIQUOT_VERSION 1u
#define ALIQUOT_LIMITS_MAGIC 0x314d494c51494c41ull /* "ALIQLIM1" */
#define ALIQUOT_USAGE_MAGIC 0x3145535551494c41ull  /* "ALIQUSE1" */

#define ALIQUOT_MAX_GPUS 16u
#define ALIQUOT_MAX_PROCESSES 1024u
#define ALIQUOT_NAME_SIZE 64u

/* The entry of `slices`, in both pages, for memory of the host that is mapped on the GPU. It is no GPU's:
 * limit_bytes is what the grant may have there, 0 without `spill`, and the ledger counts what it has. A grant
 * with `spill` has one GPU. */
#define ALIQUOT_HOST_SLICE (ALIQUOT_MAX_GPUS - 1)

/* The ledger counts in units of the driver's smallest allocation. */
#define ALIQUOT_UNIT 512u

enum aliquot_policy { ALIQUOT_ELASTIC = 0, ALIQUOT_HARD = 1 };
enum aliquot_priority { ALIQUOT_NORMAL = 0, ALIQUOT_LATENCY = 1, ALIQUOT_BACKGROUND = 2 };

/* When a grant ends. */
enum aliquot_life {
	ALIQUOT_OWNED = 0, /* when its owner and all its other processes are gone */
	ALIQUOT_KEPT = 1,  /* when somebody ends it, or the process that it was made for dies */
	ALIQUOT_ENDED = 2, /* with its last process: it was ended, and no process can join it */
};

/* Whether a grant uses its slices now. The driver freezes and thaws its processes while it is
 * switching. */
enum aliquot_grant_state {
	ALIQUOT_GRANT_ACTIVE = 0,    /* it takes turns, and processes can join it */
	ALIQUOT_GRANT_SWITCHING = 1, /* it has its slices, its gates are open, no process can join it */
	ALIQUOT_GRANT_PARKED = 2,    /* as switching, and its slices are free for other grants */
};

/* Why the driver cannot freeze a process: features that it has ever used, one bit each. */
enum aliquot_tie {
	ALIQUOT_TIE_MANAGED = 1, /* managed memory */
	ALIQUOT_TIE_IPC = 2,     /* memory or events shared with other processes by IPC handle */
	ALIQUOT_TIE_SHARED = 4,  /* exported or imported memory */
	ALIQUOT_TIE_HOST = 8,    /* memory of the host in place of the GPU's (ALIQUOT_HOST_SLICE) */
};

/* In the same word, above the ties: the number of its driver calls in progress (cuda/freeze_barrier.h). */
#define ALIQUOT_INSIDE (UINT64_C(1) << 32)

enum aliquot_process_state {
	ALIQUOT_FREE = 0,   /* the slot is not used */
	ALIQUOT_LIVE = 1,   /* its process has joined and is alive */
	ALIQUOT_ENDING = 2, /* its process is dead; its memory may still be on the GPU for a moment */
};

/* One slice: a part of one GPU. */
struct aliquot_slice_limits {
	uint8_t uuid[16];
	char pci_bus_id[32];          /* as NVML writes it */
	uint64_t gpu_bytes;           /* the whole GPU's memory */
	_Atomic uint64_t limit_bytes; /* the slice's memory: a hard limit */
	_Atomic uint64_t
		headroom_bytes;             /* reserve for what the driver takes between two measurements */
	_Atomic uint64_t driver_bytes;  /* taken by the driver itself: contexts, modules, ... */
	_Atomic uint64_t context_bytes; /* expected size of one context; 0: not yet known */
	_Atomic uint32_t compute_percent; /* 0: an equal part of what the others leave */
	_Atomic uint32_t policy;          /* enum aliquot_policy */
	_Atomic uint32_t priority;        /* enum aliquot_priority */
	_Atomic uint32_t
		grant_state; /* enum aliquot_grant_state: read it with aliquot_limits_grant_state */
	/* Only in the first slice: */
	_Atomic uint32_t swap; /* 1: programs' memory can leave the GPU (move.h) */
	_Atomic uint32_t
		residence; /* where that memory shall be: ALIQUOT_ON_HOST, and above it a count of
	                               the changes. Programs sleep on this word (futex). */
	_Atomic uint32_t counts_calls; /* 1: programs count their use of memory (credit.h: calls) */
	_Atomic uint32_t
		leave_parts; /* how much shall leave if the memory shall be on the host: 0: all;
	                                 otherwise one less, of ALIQUOT_LEAVE_WHOLE parts of what can.
	                                 Written before `residence` */
	_Atomic uint32_t
		refused; /* the value of `residence` at which calls that ask for memory are out of memory
	                                 instead of waiting; 0: none */
	uint32_t instance; /* 1: of an instance of a GPU (MIG), whose UUID is written "MIG-..." */
};

#define ALIQUOT_LEAVE_WHOLE 65536u

/* In aliquot_slice_limits.residence: the memory shall be on the host; without it, on the GPU. */
#define ALIQUOT_ON_HOST 1u

/* One process of the grant, as the kernel identifies it. */
struct aliquot_process {
	_Atomic uint32_t state; /* enum aliquot_process_state */
	int32_t pid;            /* in the arbiter's pid namespace */
	int32_t inner_pid;      /* in its own pid namespace */
	uint32_t pages;         /* the number of its credit and work pages; 0: none yet */
	uint64_t
		start_time; /* /proc/PID/stat's field 22: differs from a later process of the same pid */
	_Atomic uint64_t driver_bytes[ALIQUOT_MAX_GPUS]; /* its part of slices[i].driver_bytes */
};

struct aliquot_limits {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* sizeof(struct aliquot_limits) */
	char name[ALIQUOT_NAME_SIZE];
	uint32_t slice_count;
	uint32_t owner_uid;    /* the user who made it */
	int32_t owner_pid;     /* the process that it was made for; 0: none */
	_Atomic uint32_t life; /* enum aliquot_life */
	uint64_t owner_start_time;
	uint64_t created_ns; /* CLOCK_REALTIME */
	struct aliquot_slice_limits slices[ALIQUOT_MAX_GPUS];
	struct aliquot_process processes[ALIQUOT_MAX_PROCESSES];
};

/* One process's entry in the ledger of one slice: see ledger.h. */
struct aliquot_entry {
	_Atomic uint64_t pending;
	_Atomic uint64_t held;
	_Atomic uint64_t managed; /* bytes of `held` that may not be on the GPU (managed memory) */
	_Atomic uint64_t
		ties; /* bits of enum aliquot_tie, and ALIQUOT_INSIDE for each call; only in the first slice */
};

struct aliquot_usage_slice {
	_Atomic uint64_t word; /* total, last writer and its turn in one word: ledger.h */
	uint64_t reserved[7];
	struct aliquot_entry entries[ALIQUOT_MAX_PROCESSES];
};

struct aliquot_usage {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* sizeof(struct aliquot_usage) */
	uint64_t reserved[6];
	struct aliquot_usage_slice slices[ALIQUOT_MAX_GPUS];
};

_Static_assert(sizeof(struct aliquot_slice_limits) == 128, "part of the contract");
_Static_assert(sizeof(struct aliquot_process) == 24 + 8 * ALIQUOT_MAX_GPUS, "part of the contract");
_Static_assert(sizeof(struct aliquot_entry) == 32, "part of the contract");
_Static_assert(offsetof(struct aliquot_usage, slices) == 64, "part of the contract");

/* Why a mapped page of `size` bytes is invalid; NULL: it is valid. */
const char *aliquot_limits_check(const struct aliquot_limits *limits, size_t size);
const char *aliquot_usage_check(const struct aliquot_usage *usage, size_t size);

/* A grant's state, from the state of its slices. If they differ because the arbiter was killed while
 * writing them, the one nearest to active counts. Unknown values count as active. */
enum aliquot_grant_state aliquot_limits_grant_state(const struct aliquot_limits *limits);

/* What the grant may have of the host's memory beside its slice; 0: none. */
uint64_t aliquot_limits_spill(const struct aliquot_limits *limits);

#endif
