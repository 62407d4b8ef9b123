/* The two shared pages of a grant.
 *
 * `limits` is written by the arbiter alone and mapped read-only by every tenant: what the grant may
 * use, and which processes hold it. `usage` is the ledger: tenants and the arbiter write it with
 * the operations of ledger.h and in no other way.
 *
 * Both are files in the grant's directory, so that an arbiter that starts again finds everything
 * in them. A tenant never opens them by path: the arbiter hands it the descriptors (protocol.h).
 *
 * Guarantees: sizes and offsets are fixed for a VERSION; a reader checks magic, version and size
 * before anything else (aliquot_limits_check, aliquot_usage_check) and fails closed.
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

/* The ledger counts in units of what the driver hands out at the least. */
#define ALIQUOT_UNIT 512u

enum aliquot_policy { ALIQUOT_ELASTIC = 0, ALIQUOT_HARD = 1 };
enum aliquot_priority { ALIQUOT_NORMAL = 0, ALIQUOT_LATENCY = 1, ALIQUOT_BACKGROUND = 2 };

/* What a grant lives by. */
enum aliquot_life {
	ALIQUOT_OWNED = 0, /* its owner: it ends when that process and all others of it are gone */
	ALIQUOT_KEPT = 1,  /* the word of who made it, whoever is in it */
	ALIQUOT_ENDED = 2, /* the processes that are left: it was kept, and takes nobody in any more */
};

/* Whether a grant has its slices now: what its programs are frozen and thawed between. */
enum aliquot_hold {
	ALIQUOT_HOLD_TAKEN = 0,  /* as ever; also what an arbiter that knew no other wrote */
	ALIQUOT_HOLD_OPEN = 1,   /* it has them, its gates stand open, nobody joins it */
	ALIQUOT_HOLD_PARKED = 2, /* the same, and others may have its room */
};

/* What keeps the driver from freezing a process: what it ever asked for, a bit each. */
enum aliquot_tie {
	ALIQUOT_TIE_MANAGED = 1, /* managed memory */
	ALIQUOT_TIE_IPC = 2,     /* memory or events that go between processes by a handle */
	ALIQUOT_TIE_SHARED = 4,  /* memory that was exported or imported */
};

/* Beside the ties stands how many of the process's calls are past the door (cuda/door.h). */
#define ALIQUOT_INSIDE (UINT64_C(1) << 32)

enum aliquot_process_state {
	ALIQUOT_FREE = 0,   /* nobody holds this slot */
	ALIQUOT_LIVE = 1,   /* its process is connected or was, and lives */
	ALIQUOT_ENDING = 2, /* dead; the GPU may still hold its bytes for a moment */
};

/* One slice: a part of one GPU. */
struct aliquot_slice_limits {
	uint8_t uuid[16];
	char pci_bus_id[32];              /* as NVML writes it */
	uint64_t gpu_bytes;               /* the whole GPU's memory */
	_Atomic uint64_t limit_bytes;     /* the slice's memory: a hard limit */
	_Atomic uint64_t headroom_bytes;  /* kept for what the driver takes between two measurements */
	_Atomic uint64_t driver_bytes;    /* what the driver took by itself: contexts, modules, ... */
	_Atomic uint64_t context_bytes;   /* what one context is expected to take; 0: not yet known */
	_Atomic uint32_t compute_percent; /* 0: an equal part of what the others leave */
	_Atomic uint32_t policy;          /* enum aliquot_policy */
	_Atomic uint32_t priority;        /* enum aliquot_priority */
	_Atomic uint32_t hold;            /* enum aliquot_hold; of the grant: aliquot_limits_hold */
	uint32_t reserved[6];
};

/* One process of the grant, by the kernel's word. */
struct aliquot_process {
	_Atomic uint32_t state; /* enum aliquot_process_state */
	int32_t pid;            /* in the arbiter's pid namespace */
	int32_t inner_pid;      /* in its own: what the tenant calls itself */
	uint32_t reserved;
	uint64_t
		start_time; /* /proc/PID/stat's field 22: tells a process from a later one of the same pid */
	_Atomic uint64_t driver_bytes[ALIQUOT_MAX_GPUS]; /* its part of slices[i].driver_bytes */
};

struct aliquot_limits {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* sizeof(struct aliquot_limits) */
	char name[ALIQUOT_NAME_SIZE];
	uint32_t slice_count;
	uint32_t owner_uid;    /* who made it */
	int32_t owner_pid;     /* the process the grant was made for; 0: none, it is kept */
	_Atomic uint32_t life; /* enum aliquot_life */
	uint64_t owner_start_time;
	uint64_t created_ns; /* CLOCK_REALTIME */
	struct aliquot_slice_limits slices[ALIQUOT_MAX_GPUS];
	struct aliquot_process processes[ALIQUOT_MAX_PROCESSES];
};

/* One process's line in the ledger of one slice: see ledger.h for the words. */
struct aliquot_entry {
	_Atomic uint64_t pending;
	_Atomic uint64_t held;
	_Atomic uint64_t managed; /* bytes of `held` that the GPU may keep elsewhere (managed memory) */
	_Atomic uint64_t ties;    /* of enum aliquot_tie, and ALIQUOT_INSIDE for each; first slice's */
};

struct aliquot_usage_slice {
	_Atomic uint64_t word; /* total, last writer and its turn in one: ledger.h */
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

/* What is wrong with a mapped page of `size` bytes; NULL: nothing. */
const char *aliquot_limits_check(const struct aliquot_limits *limits, size_t size);
const char *aliquot_usage_check(const struct aliquot_usage *usage, size_t size);

/* A grant's hold: the one of its slices' that counts most, where a writer was killed between two of
 * them; what cannot be counts. */
enum aliquot_hold aliquot_limits_hold(const struct aliquot_limits *limits);

#endif
