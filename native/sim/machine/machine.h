/* What all processes of the simulated machine share: the file `machine` in its meeting place.
 *
 * Where that is. ALIQUOT_SIMULATE=MODEL:COUNT and ALIQUOT_SIMULATE_STATE=DIR name it, and who comes
 * first makes the machine. Where neither is set it is SIM_SHOWN, if there is a machine in it: what a
 * container is shown, whose programs may be started in any environment. So a machine is simulated
 * where somebody said so, and never silently.
 *
 * The model. The file holds, for each process, what it took of each GPU, and for each GPU the sum.
 * A lock in the file (lock.h) guards both; whoever gets it after a holder died adds the sums up
 * again from the processes' own lines, so a process killed at any instruction leaves nothing
 * behind. A process that was checkpointed (cuda_checkpoint.c) has nothing on the GPUs: its line says
 * what it took and takes again when it is restored, and no sum has it.
 *
 * Who lives. Each process that uses a GPU holds a POSIX record lock on the byte of its slot, and
 * each library that has the file open one on the byte of its seat at the lock: the kernel drops them
 * when the process ends (also as a zombie, also on exec) and a forked child does not have them.
 * Whoever looks and finds a line without its lock clears the line (machine_reap). For that reason
 * the file's descriptor is never closed: closing any descriptor of a file drops all of a process's
 * locks on it. A record lock names its process to each caller by that caller's own pid namespace.
 *
 * Guarantees: the sum of what processes hold never passes the GPU's capacity; what a dead process
 * held is free for the next who looks; a GPU's busy time is the sum of its processes' and of what
 * the dead had. The last SIM_ENDED of the dead can still be read about.
 */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H

#include "lock.h"
#include "shape.h"

#include <pthread.h>
#include <sys/types.h>

#define SIM_MAGIC 0x31304d4953514c41ull /* "ALQSIM01" */
#define SIM_VERSION 4u
#define SIM_SHOWN "/run/aliquot/machine"
#define SIM_MAX_PROCESSES 1024u
#define SIM_SEATS 4096u
#define SIM_TURNS (1u << 19) /* of a seat */
#define SIM_ENDED 256u
#define SIM_NONE UINT32_MAX
#define SIM_NEVER UINT64_MAX
#define SIM_BUCKETS 16u
#define SIM_BUCKET_NS 100000000ull /* of the history of use: 100 ms */

/* How long something was busy lately: a ring of buckets by CLOCK_MONOTONIC. */
struct sim_history {
	uint64_t last; /* number of the newest bucket */
	uint32_t busy_ns[SIM_BUCKETS];
};

/* One process's part of one GPU. */
struct sim_part {
	uint64_t bytes;   /* device memory it took, its contexts included */
	uint64_t managed; /* managed memory that lies on the GPU */
	uint64_t busy_ns; /* GPU time its kernels had */
	uint64_t kernels; /* how many ended */
	uint32_t contexts;
	uint32_t reserved;
	struct sim_history history;
};

/* The first three as CUprocessState has them; its fourth does not come about. */
enum sim_process_state { SIM_RUNNING, SIM_LOCKED, SIM_CHECKPOINTED, SIM_LOCKING = 4 };

struct sim_process {
	uint32_t used;  /* 1: this line belongs to a process */
	int32_t pid;    /* as it calls itself */
	uint64_t token; /* its own: tells it from one it execs or forks, and from another namespace's */
	uint64_t since_us; /* CLOCK_REALTIME */
	uint32_t state;    /* enum sim_process_state */
	uint32_t locker;   /* SIM_LOCKING: the ticket of who does it */
	uint32_t calls;    /* of the driver that it is in; not those that wait until it is unlocked */
	uint32_t work;     /* operations it asked for that have not ended */
	uint32_t managed;  /* its pieces of managed memory */
	uint32_t imported; /* its pieces of memory that are other processes' */
	int32_t worker;    /* the thread that carries its work out, as it calls itself; 0: none yet */
	uint32_t lost;     /* 1: there was no room to restore it, and there will be none */
	uint32_t reserved[2];
	struct sim_part parts[SIM_MAX_GPUS];
};

/* A process that has ended. */
struct sim_ended {
	int32_t pid;
	uint32_t reserved;
	uint64_t busy_ns[SIM_MAX_GPUS];
};

/* At the lock: one for each library that has the file open. A ticket for the lock is a seat and its
 * turn, so that a dead process's is never the next one's. */
struct sim_seat {
	uint64_t token; /* its process's */
	uint32_t turn;  /* goes up each time it is taken, from 1 to SIM_TURNS and over again */
	uint32_t reserved;
};

enum sim_request_state { SIM_IDLE, SIM_QUEUED, SIM_DONE };

/* A process's kernel that waits for the GPU's engine, has it, or had it. */
struct sim_request {
	uint32_t state; /* enum sim_request_state */
	uint32_t more;  /* 1: the process has another kernel for when this one ends */
	uint64_t ready_ns;
	uint64_t left_ns; /* of its duration; SIM_NEVER: it spins, and its end is not known */
	uint64_t end_ns;
	uint64_t noted_ns; /* when that was written down */
};

struct sim_gpu {
	uint64_t used;     /* sum of all parts' bytes and managed */
	uint64_t busy_ns;  /* sum of all parts' busy_ns, and ended_ns */
	uint64_t ended_ns; /* what processes that have ended had of it */
	uint32_t running;  /* the process that has the engine; SIM_NONE */
	uint32_t last;     /* the one that had it before */
	uint64_t time_ns;  /* what happened before is written down */
	uint64_t slice_ns; /* end of the running process's slice */
	struct sim_history history;
	struct sim_request requests[SIM_MAX_PROCESSES];
};

struct sim_map {
	uint64_t magic;
	uint32_t version;
	uint32_t size;
	char model[16];
	uint32_t count;
	uint32_t high; /* processes from here on were never used */
	uint64_t seed; /* of the GPUs' UUIDs */
	struct sim_lock lock;
	struct sim_gpu gpus[SIM_MAX_GPUS];
	struct sim_process processes[SIM_MAX_PROCESSES];
	uint64_t ended_count; /* ever; the newest is at (ended_count - 1) % SIM_ENDED */
	struct sim_ended ended[SIM_ENDED];
	struct sim_seat seats[SIM_SEATS];
};

struct machine {
	struct sim_shape shape;
	struct sim_map *map;
	int place; /* the folder the file is in */
	int fd;
	uint32_t slot;           /* this process's line; SIM_NONE before machine_enter */
	uint32_t ticket;         /* for the lock; 0 in a forked child before its first look */
	pthread_mutex_t threads; /* one of this process at a time */
};

/* The GPUs' clock: CLOCK_MONOTONIC in ns. */
uint64_t machine_now(void);

/* Opens the machine; false: `why` says what stands against it. */
bool machine_open(struct machine *m, char *why, size_t size);

/* For machine_open: a place at the lock; false: all are taken. */
bool machine_sit_down(struct machine *m);

void machine_lock(struct machine *m);
void machine_unlock(struct machine *m);

/* Whether who has a ticket for the lock lives. `machine` is a struct machine. */
bool machine_lives(void *machine, uint32_t ticket);

/* Gives this process a line; false: all are taken. */
bool machine_enter(struct machine *m);

/* Bytes programs can have of each GPU. */
uint64_t machine_capacity(const struct machine *m);

/* Takes `bytes` of the GPU for this process; false: they are not there, nothing changed. */
bool machine_take(struct machine *m, uint32_t gpu, uint64_t bytes);
void machine_give(struct machine *m, uint32_t gpu, uint64_t bytes);

/* The same for managed memory; takes what fits and says how much that was. */
uint64_t machine_take_managed(struct machine *m, uint32_t gpu, uint64_t bytes);
void machine_give_managed(struct machine *m, uint32_t gpu, uint64_t bytes);

void machine_count_contexts(struct machine *m, uint32_t gpu, int change);

/* Bytes in use of the GPU, after clearing away the dead. */
uint64_t machine_used(struct machine *m, uint32_t gpu);

/* Clears the lines of dead processes. Precondition: the lock is held. */
void machine_reap(struct machine *m);

/* The pid of the line's process as the caller's pid namespace knows it; 0: it is dead. */
pid_t machine_pid(struct machine *m, uint32_t slot);

/* The line of the living process that the caller's pid namespace knows by that pid, which is more
 * than 0; SIM_NONE: there is none. Precondition of this and the next two: the lock is held. */
uint32_t machine_find(struct machine *m, pid_t pid);

/* Takes what a process has off the GPUs: it is SIM_CHECKPOINTED. */
void machine_take_off(struct machine *m, struct sim_process *p);

/* Brings it back: it is SIM_LOCKED. False: there is no room, nothing changed. */
bool machine_bring_back(struct machine *m, struct sim_process *p);

/* Whether the line is a process's that may have something on the GPUs. */
static inline bool machine_on_gpus(const struct sim_process *p)
{
	return p->used && p->state != SIM_CHECKPOINTED;
}

void machine_uuid(const struct machine *m, uint32_t gpu, uint8_t uuid[16]);

#endif
