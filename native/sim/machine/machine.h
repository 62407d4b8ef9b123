/* What all processes of the simulated machine share: the file `machine` in the machine's folder.
 *
 * Where the folder is. ALIQUOT_SIMULATE=MODEL:COUNT and ALIQUOT_SIMULATE_STATE=DIR name the machine and
 * its folder; the first process creates the file. If neither is set, the folder is SIM_MOUNTED, if it
 * holds a machine: this is where a container has its machine mounted, so that its programs find it in
 * any environment. A machine is therefore simulated only where somebody asked for it.
 *
 * The model. The file has an entry for each process, which says how much of each GPU the process uses,
 * and for each GPU the sum. A lock in the file (lock.h) guards both. The process that gets the lock after
 * its holder died adds up the sums again from the entries, so a process that is killed at any instruction
 * leaves nothing behind. A process that was checkpointed (cuda/core/checkpoint.c) has nothing on the
 * GPUs: its entry says what it had and will need when it is restored, and no sum includes it.
 *
 * Which processes live. Each process that uses a GPU holds a POSIX record lock on the byte of its slot
 * (the index of its entry). Each library that has the file open holds one on the byte of its seat (its
 * place among those that may take the file's lock). The kernel drops these record locks when the process
 * ends (even as a zombie) or execs, and a forked child does not inherit them. A process that finds an
 * entry without its record lock clears the entry (machine_reap). This is why the library never closes the
 * file: closing any descriptor of a file drops all record locks of the process on it. The kernel
 * reports the owner of a record lock by its pid in the caller's pid namespace.
 *
 * Upgrade. A file of another version is made anew when no process has it open any more.
 *
 * MIG (mig.h). A GPU in MIG mode is divided into GPU instances, and each of those into compute instances.
 * What a program uses is a *unit*: a GPU that is not in MIG mode, or a compute instance. Units have one
 * numbering: GPUs have their index, and the compute instance in entry N of `computes` has the number
 * `count` + N. Everything below that takes a `gpu` takes a unit.
 *
 * Guarantees: the sum of what processes use never exceeds a GPU's capacity. What a dead process used is
 * free for the next process that looks. A GPU's busy time is the sum of its processes', including those
 * that have ended. The last SIM_ENDED processes that ended can still be read about.
 */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H

#include "lock.h"
#include "shape.h"

#include <pthread.h>
#include <sys/types.h>

#define SIM_MAGIC 0x31304d4953514c41ull /* "ALQSIM01" */
#define SIM_VERSION 7u
#define SIM_MOUNTED "/run/aliquot/machine"
#define SIM_MAX_INSTANCES 56u /* of eight GPUs */
#define SIM_UNITS (SIM_MAX_GPUS + SIM_MAX_INSTANCES)
#define SIM_MAX_PROCESSES 1024u
#define SIM_SEATS 4096u
#define SIM_TURNS (1u << 19) /* how often a seat is taken before its tickets repeat */
#define SIM_ENDED 256u
#define SIM_SHARES 8192u
#define SIM_NONE UINT32_MAX
#define SIM_NEVER UINT64_MAX
#define SIM_BUCKETS 16u
#define SIM_BUCKET_NS 100000000ull /* 100 ms */

/* How long something was busy lately: a ring of buckets on CLOCK_MONOTONIC. */
struct sim_history {
	uint64_t last; /* the newest bucket: its time / SIM_BUCKET_NS */
	uint32_t busy_ns[SIM_BUCKETS];
};

/* What one process uses of one GPU. */
struct sim_usage {
	uint64_t bytes;   /* device memory, including its contexts */
	uint64_t managed; /* managed memory that is on the GPU */
	uint64_t busy_ns; /* GPU time of its kernels */
	uint64_t kernels; /* kernels that ended */
	uint32_t contexts;
	uint32_t reserved;
	struct sim_history history;
};

/* The first three have the values of CUprocessState; its fourth, FAILED, is not simulated. */
enum sim_process_state { SIM_RUNNING, SIM_LOCKED, SIM_CHECKPOINTED, SIM_LOCKING = 4 };

struct sim_process {
	uint32_t used;     /* 1: this entry belongs to a process */
	int32_t pid;       /* in its own pid namespace */
	uint64_t token;    /* random: distinguishes it from processes with the same pid */
	uint64_t since_us; /* when it started, by CLOCK_REALTIME */
	uint32_t state;    /* enum sim_process_state */
	uint32_t locker;   /* SIM_LOCKING: the ticket of the process that locks it */
	uint32_t calls;    /* driver calls it is in, except those that wait until it is unlocked */
	uint32_t work;     /* operations it submitted that have not ended */
	uint32_t managed;  /* its allocations of managed memory */
	uint32_t imported; /* its allocations that it imported from other processes */
	int32_t worker;    /* thread id of its worker, in its own pid namespace; 0: none yet */
	uint32_t lost;     /* 1: a restore failed for lack of memory, so every later one fails */
	uint32_t reserved[2];
	struct sim_usage usage[SIM_UNITS];
};

/* A process that has ended. */
struct sim_ended {
	int32_t pid;
	uint32_t reserved;
	uint64_t busy_ns[SIM_UNITS];
};

/* One for each library that has the file open. A ticket for the file's lock is a seat with its turn, so
 * that the next library in a dead process's seat has another ticket. */
struct sim_seat {
	uint64_t token; /* of its process */
	uint32_t turn; /* counts how often the seat was taken; from 1 to SIM_TURNS, then again from 1 */
	uint32_t reserved;
};

enum sim_request_state { SIM_IDLE, SIM_QUEUED, SIM_DONE };

/* A process's kernel that waits for a GPU's engine, runs on it, or has ended (see schedule.h). */
struct sim_request {
	uint32_t state; /* enum sim_request_state */
	uint32_t more;  /* 1: the process will submit another kernel when this one ends */
	uint64_t ready_ns;
	uint64_t left_ns; /* remaining duration; SIM_NEVER: it spins, and its end is unknown */
	uint64_t end_ns;
	uint64_t noted_ns; /* when the schedule recorded the end */
};

struct sim_gpu {
	uint64_t used;     /* sum of `bytes` and `managed` over all processes */
	uint64_t busy_ns;  /* sum of `busy_ns` over all processes, plus ended_ns */
	uint64_t ended_ns; /* GPU time of the processes that have ended */
	uint32_t running;  /* slot of the process that has the engine; SIM_NONE */
	uint32_t last;     /* slot of the process that had it before */
	uint64_t time_ns;  /* the schedule is recorded up to here */
	uint64_t slice_ns; /* end of the running process's slice */
	struct sim_history history;
	struct sim_request requests[SIM_MAX_PROCESSES];
};

/* A GPU instance: memory slices of a GPU in MIG mode, and multiprocessors. */
struct sim_instance {
	uint32_t used; /* written last when it is made */
	uint32_t gpu;
	uint32_t id;      /* unique on the GPU */
	uint32_t profile; /* index in the shape */
	uint32_t start;   /* its first memory slice */
};

/* A compute instance: compute slices of a GPU instance, whose memory it shares with the others there. */
struct sim_compute {
	uint32_t used;
	uint32_t instance; /* index of its GPU instance */
	uint32_t id;       /* unique in the GPU instance */
	uint32_t start, slices;
	uint8_t uuid[16];
};

/* Device memory that several processes hold (share.h). */
struct sim_share {
	uint64_t bytes;
	uint32_t gpu;
	uint32_t owner; /* slot of the process whose usage contains the bytes */
	uint16_t holds[SIM_MAX_PROCESSES];
};

struct sim_map {
	uint64_t magic;
	uint32_t version;
	uint32_t size;
	char model[16];
	uint32_t count;
	uint32_t high; /* entries from this slot on were never used */
	uint64_t seed; /* for the GPUs' UUIDs */
	struct sim_lock lock;
	struct sim_gpu gpus[SIM_UNITS];
	struct sim_process processes[SIM_MAX_PROCESSES];
	uint64_t ended_count; /* in total; the newest is at (ended_count - 1) % SIM_ENDED */
	struct sim_ended ended[SIM_ENDED];
	struct sim_seat seats[SIM_SEATS];
	uint64_t share_count; /* in total: the newest id */
	uint32_t shares_high; /* entries from this one on were never used */
	uint32_t reserved;
	uint64_t share_ids[SIM_SHARES]; /* 0: a free entry */
	struct sim_share shares[SIM_SHARES];
	uint32_t mig[SIM_MAX_GPUS]; /* 1: the GPU is in MIG mode */
	struct sim_instance instances[SIM_MAX_INSTANCES];
	struct sim_compute computes[SIM_MAX_INSTANCES];
	uint32_t computes_high; /* entries from this one on were never used */
};

struct machine {
	struct sim_shape shape;
	struct sim_map *map;
	int folder; /* descriptor of the folder of the file */
	int fd;
	uint32_t slot;           /* of this process; SIM_NONE before machine_enter */
	uint32_t ticket;         /* for the file's lock; 0 in a forked child until it first locks */
	pthread_mutex_t threads; /* one thread of this process at a time */
};

/* The GPUs' clock: CLOCK_MONOTONIC in ns. */
uint64_t machine_now(void);

/* Opens the machine; false: `why` is the reason it cannot. */
bool machine_open(struct machine *m, char *why, size_t size);

/* For machine_open: takes a seat; false: all are taken. */
bool machine_take_seat(struct machine *m);

/* Takes the file's lock, and repairs the file if the last holder died. */
void machine_lock(struct machine *m);
void machine_unlock(struct machine *m);

/* Whether the process with that ticket lives. `machine` is a struct machine. */
bool machine_ticket_lives(void *machine, uint32_t ticket);

/* Gives this process an entry; false: all are taken. */
bool machine_enter(struct machine *m);

/* How many units there are, with those that were destroyed. */
static inline uint32_t machine_units(const struct sim_map *map)
{
	return map->count + map->computes_high;
}

/* The GPU that a unit is, or is a part of. */
uint32_t machine_gpu(const struct sim_map *map, uint32_t unit);

/* A unit's memory, as NVML's total, and what no program gets of it. */
uint64_t machine_memory(const struct machine *m, uint32_t unit);
uint64_t machine_reserved(const struct machine *m, uint32_t unit);

uint32_t machine_sms(const struct machine *m, uint32_t unit);

/* Whether one unit can access another one's memory. */
bool machine_linked(const struct machine *m, uint32_t a, uint32_t b);

/* Bytes of a unit that programs can allocate. */
uint64_t machine_capacity(const struct machine *m, uint32_t unit);

/* Takes `bytes` of the GPU for this process; false: so many are not free, and nothing changed. */
bool machine_take(struct machine *m, uint32_t gpu, uint64_t bytes);
void machine_give(struct machine *m, uint32_t gpu, uint64_t bytes);

/* Shares what this process has taken (share.h). Returns its id; 0: too much is shared. */
uint64_t machine_share(struct machine *m, uint32_t gpu, uint64_t bytes);
/* Holds shared memory once more; false: nobody holds it, and so much is not free. */
bool machine_join(struct machine *m, uint64_t id, uint32_t gpu, uint64_t bytes);
/* Holds it once less. */
void machine_leave(struct machine *m, uint64_t id);

/* machine_take and machine_give for managed memory; takes what is free and returns how much that was. */
uint64_t machine_take_managed(struct machine *m, uint32_t gpu, uint64_t bytes);
void machine_give_managed(struct machine *m, uint32_t gpu, uint64_t bytes);

void machine_count_contexts(struct machine *m, uint32_t gpu, int change);

/* Bytes in use of the unit, or of all units of a GPU in MIG mode, without those of dead processes. */
uint64_t machine_used(struct machine *m, uint32_t gpu);

/* Clears the entries of dead processes. Precondition: the file's lock is held. */
void machine_reap(struct machine *m);

/* The pid of the process in the caller's pid namespace; 0: the process is dead. If the caller's
 * namespace does not contain the process: its pid in its own. */
pid_t machine_pid(struct machine *m, uint32_t slot);

/* The slot of the live process with that pid (more than 0) in the caller's pid namespace; SIM_NONE:
 * there is none. Precondition of this and the next two: the file's lock is held. */
uint32_t machine_find(struct machine *m, pid_t pid);

/* Takes what a process uses off the GPUs; its state becomes SIM_CHECKPOINTED. */
void machine_checkpoint(struct machine *m, struct sim_process *p);

/* Puts it back; its state becomes SIM_LOCKED. False: too little memory is free, and nothing changed. */
bool machine_restore(struct machine *m, struct sim_process *p);

/* Whether the entry is that of a process that may have something on the GPUs. */
static inline bool machine_on_gpus(const struct sim_process *p)
{
	return p->used && p->state != SIM_CHECKPOINTED;
}

void machine_uuid(const struct machine *m, uint32_t gpu, uint8_t uuid[16]);

/* The same as text: "GPU-..." or "MIG-...". */
void machine_uuid_text(const struct machine *m, uint32_t gpu, char out[48]);

#endif
