/* The simulated CUDA driver inside one process: its state, its contexts and its handles.
 *
 * The model. One lock guards everything in the process. Every entry point takes it with SIM_ENTER,
 * which first waits until no other process has locked this one for a checkpoint (checkpoint.c). A
 * call that waits for the GPU releases the lock while it waits. State that is shared with other
 * processes is behind machine/machine.h and machine/engine.h. A handle is the address of one of the
 * driver's structures; a table of the live ones (handle_*) tells a valid handle from an invalid one
 * without touching memory at that address.
 *
 * Device memory is host memory: a device pointer is an address in this process.
 *
 * Layers of the headers, from the bottom: this one; memory/memory.h (address ranges and pages);
 * graph/graph.h and graph/capture.h; stream/stream.h (operations, and the threads that run them). Above
 * them are the entry points: allocators, modules and launches, executable graphs, contexts. A lower
 * layer never calls a higher one. Instead the higher one registers a function (context_end.h, a range's
 * `release`), or the lower one returns to its caller what happened (kernels_step). A test checks that no
 * files depend on each other in a circle.
 */
#ifndef SIM_H
#define SIM_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include "machine/machine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define SIM_DRIVER_VERSION 13000
#define SIM_MIB (1ull << 20)
#define SIM_PAGE (2 * SIM_MIB) /* the unit in which the driver allocates device memory */
#define SIM_MANAGED_PAGE (64ull << 10)

/* What a handle refers to. */
enum sim_kind {
	SIM_CONTEXT = 1,
	SIM_STREAM,
	SIM_EVENT,
	SIM_MODULE,
	SIM_FUNCTION,
	SIM_LIBRARY,
	SIM_KERNEL,
	SIM_POOL,
	SIM_ARRAY,
	SIM_MIPMAP,
	SIM_PHYSICAL,
	SIM_GRAPH,
	SIM_NODE,
	SIM_EXEC,
	SIM_USER_OBJECT,
};

#define SIM_MAX_QUEUES 32

/* One hardware queue: see cuda/stream/stream.h. */
struct sim_queue {
	struct sim_op *first, *last; /* not yet issued */
	uint64_t time_ns;            /* when the last operation was issued */
	uint64_t waiting_ns; /* since when the first waits for a value in memory; 0: it does not */
};

struct sim_context {
	CUdevice device;
	uint32_t gpu;
	uint32_t flags, api;
	uint64_t id;
	uint64_t taken; /* bytes of the GPU for itself, with its stacks */
	bool primary, live;
	int references;             /* cuCtxAttach, cuDevicePrimaryCtxRetain */
	struct sim_stream *streams; /* all of them, including the legacy stream */
	struct sim_stream *legacy;
	struct sim_queue queues[2][SIM_MAX_QUEUES]; /* [0]: everything but copies; [1]: copies */
	uint32_t queue_count, next_queue;
	CUresult fault; /* the error that ended all work in the context; CUDA_SUCCESS: none */
	struct sim_module *modules;
	struct sim_block *blocks;
	uint64_t limits[CU_LIMIT_MAX];
	CUfunc_cache cache;
	CUsharedconfig shared_config;
	struct sim_context *next;
};

struct sim_device {
	uint32_t gpu;                /* its unit in the machine */
	struct sim_context *primary; /* if it has ended, the next one is made in the same memory */
	uint32_t primary_flags;
	struct sim_pool *default_pool, *pool;
};

extern struct sim {
	int state; /* enum sim_state */
	struct machine machine;
	int count; /* visible devices */
	struct sim_device devices[SIM_UNITS];
	struct sim_context
		*contexts; /* destroyed ones too: a thread may still have them on its stack */
	uint64_t next_id;
	/* From ALIQUOT_SIMULATE_WITHOUT. */
	bool without_stream_operations, without_checkpoint;
	bool without_process_memory; /* NVML has no figures by process: nvml/memory.c */
	bool without_prompt_values;  /* a stream waits for a value for 1.5 s: a GPU busy with others */
	pthread_mutex_t lock;
} sim;

enum sim_state { SIM_COLD, SIM_READY, SIM_FORKED };

/* First line of an entry point: returns an error if cuInit has not run; otherwise holds the driver's
 * lock until the function returns. */
#define SIM_ENTER()                                                                                \
	if (__atomic_load_n(&sim.state, __ATOMIC_ACQUIRE) != SIM_READY)                                \
		return CUDA_ERROR_NOT_INITIALIZED;                                                         \
	sim_enter();                                                                                   \
	__attribute__((cleanup(sim_leave), unused)) int sim_guard = 0

/* The same for a call that only queries or waits: it works in a locked process too. In a checkpointed
 * process it executes `otherwise`, which must leave the function. */
#define SIM_ENTER_QUERY(otherwise)                                                                 \
	if (__atomic_load_n(&sim.state, __ATOMIC_ACQUIRE) != SIM_READY)                                \
		return CUDA_ERROR_NOT_INITIALIZED;                                                         \
	if (!sim_enter_query())                                                                        \
		otherwise;                                                                                 \
	__attribute__((cleanup(sim_leave), unused)) int sim_guard = 0

/* Declares `context`, the calling thread's current context, or returns the error that it has none. */
#define SIM_CURRENT(context)                                                                       \
	struct sim_context *context;                                                                   \
	do {                                                                                           \
		CUresult result_ = context_current(&context);                                              \
		if (result_)                                                                               \
			return result_;                                                                        \
	} while (0)

#define SIM_DEVICE_CHECK(device)                                                                   \
	if ((device) < 0 || (device) >= sim.count)                                                     \
	return CUDA_ERROR_INVALID_DEVICE

#define SIM_TRY(call)                                                                              \
	do {                                                                                           \
		CUresult result_ = (call);                                                                 \
		if (result_)                                                                               \
			return result_;                                                                        \
	} while (0)

/* This process's entry in the machine's file. */
static inline struct sim_process *sim_self(void)
{
	return &sim.machine.map->processes[sim.machine.slot];
}

/* checkpoint.c */
void sim_enter(void);
bool sim_enter_query(void); /* false: the process is checkpointed, and the lock is not held */
void sim_leave(int *guard);
bool sim_is_locked(void); /* the process is locked or checkpointed */
/* Ends the program by SIGSEGV, as NVIDIA's driver does for `call` in a checkpointed process. */
void sim_crash(const char *call) __attribute__((noreturn));

/* init.c */
CUresult sim_find_machine(void); /* opens the machine without cuInit: the process gets no entry */
void sim_enter_per_thread(void);
void sim_leave_per_thread(void);
bool sim_per_thread(void); /* the program called a _ptsz or _ptds function */

/* handle.c. Precondition of this and everything below: the driver's lock is held. */
void handle_add(const void *object, enum sim_kind kind);
void handle_remove(const void *object);
bool handle_is(const void *object, enum sim_kind kind);

/* current.c: each thread's stack of contexts */
CUresult context_current(struct sim_context **context); /* an error if a fault has ended it */
CUresult context_top(struct sim_context **context);     /* the same, but ignores a fault */
uint32_t device_threads(void);                          /* that one multiprocessor runs at once */
CUresult context_get(CUcontext handle, struct sim_context **context); /* NULL: the current one */
CUresult context_push(struct sim_context *context);
void context_pop_if_top(const struct sim_context *context);

#endif
