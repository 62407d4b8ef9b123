/* The simulated driver inside one process: its objects and the few functions its files share.
 *
 * The model. One lock guards everything in the process; every entry point takes it (SIM_ENTER), once
 * no other process has this one locked (cuda_checkpoint.c), and a wait for the GPU gives it up for as
 * long as it waits. What is shared with other processes lies behind machine.h and engine.h. Handles
 * are addresses of the structures below; a table of the living ones (handle_*) tells a bad handle
 * from a good one without touching it.
 *
 * Device memory is host memory: a device pointer is an address in this process.
 */
#ifndef SIM_H
#define SIM_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include "engine.h"
#include "machine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define SIM_DRIVER_VERSION 13000
#define SIM_MIB (1ull << 20)
#define SIM_PAGE (2 * SIM_MIB) /* what device memory comes in */
#define SIM_MANAGED_PAGE (64ull << 10)

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

enum sim_memory {
	SIM_DEVICE,
	SIM_SMALL,
	SIM_POOLED,
	SIM_MANAGED,
	SIM_HOST,
	SIM_REGISTERED,
	SIM_MAPPED,
	SIM_GLOBAL
};

/* A range of addresses the driver knows. */
struct sim_range {
	uint64_t base, size;
	enum sim_memory memory;
	uint32_t gpu;
	struct sim_context *context; /* NULL: none owns it */
	uint64_t taken;              /* bytes it took of the GPU by itself */
	uint32_t flags;
	uint32_t access; /* SIM_MAPPED: PROT_* bits that cuMemSetAccess gave */
	uint64_t id;
	void *owner; /* the block, pool or physical memory behind it */
};

#define SIM_MAX_QUEUES 32

/* One hardware queue: see cuda_stream.h. */
struct sim_queue {
	struct sim_op *first, *last; /* not yet issued */
	uint64_t time_ns;            /* when the last one was issued */
	uint64_t waiting_ns;         /* since when its first one waits for a word; 0: it does not */
};

struct sim_context {
	CUdevice device;
	uint32_t gpu;
	uint32_t flags, api;
	uint64_t id;
	bool primary, live;
	int references;             /* cuCtxAttach, cuDevicePrimaryCtxRetain */
	struct sim_stream *streams; /* all, the legacy one included */
	struct sim_stream *legacy;
	struct sim_queue queues[2][SIM_MAX_QUEUES]; /* of work, and of copies */
	uint32_t queue_count, next_queue;
	CUresult fault; /* the error that ended all work in it; CUDA_SUCCESS: none */
	struct sim_module *modules;
	struct sim_block *blocks;
	uint64_t limits[CU_LIMIT_MAX];
	CUfunc_cache cache;
	CUsharedconfig shared_config;
	struct sim_context *next;
};

struct sim_device {
	uint32_t gpu;                /* in the machine */
	struct sim_context *primary; /* may have ended: then it is made again in its place */
	uint32_t primary_flags;
	struct sim_pool *default_pool, *pool;
};

extern struct sim {
	int state; /* enum sim_state */
	struct machine machine;
	int count; /* visible devices */
	struct sim_device devices[SIM_MAX_GPUS];
	struct sim_context *contexts; /* also destroyed ones: a thread may still name them */
	uint64_t next_id;
	bool without_stream_operations, without_checkpoint; /* ALIQUOT_SIMULATE_WITHOUT says so */
	pthread_mutex_t lock;
} sim;

enum sim_state { SIM_COLD, SIM_READY, SIM_FORKED };

/* First line of an entry point: the driver is ready, and its lock is held until the function
 * ends. */
#define SIM_ENTER()                                                                                \
	if (__atomic_load_n(&sim.state, __ATOMIC_ACQUIRE) != SIM_READY)                                \
		return CUDA_ERROR_NOT_INITIALIZED;                                                         \
	sim_enter();                                                                                   \
	__attribute__((cleanup(sim_leave), unused)) int sim_guard = 0

/* The same in a call that only looks or waits: a locked process's goes on, and in a checkpointed one
 * `otherwise` is done, which does not come back. */
#define SIM_LOOK(otherwise)                                                                        \
	if (__atomic_load_n(&sim.state, __ATOMIC_ACQUIRE) != SIM_READY)                                \
		return CUDA_ERROR_NOT_INITIALIZED;                                                         \
	if (!sim_look())                                                                               \
		otherwise;                                                                                 \
	__attribute__((cleanup(sim_leave), unused)) int sim_guard = 0

/* The calling thread's context, or the function ends with the error that there is none. */
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

/* This process's line in the machine's file. */
static inline struct sim_process *sim_self(void)
{
	return &sim.machine.map->processes[sim.machine.slot];
}

/* cuda_checkpoint.c */
void sim_enter(void);
bool sim_look(void); /* false: the process is checkpointed, and the lock is not held */
void sim_leave(int *guard);
bool sim_is_locked(void);                                   /* or checkpointed */
void sim_crash(const char *call) __attribute__((noreturn)); /* as the card's driver does */

/* cuda_init.c */
CUresult sim_find_machine(void); /* without cuInit: the process gets no line */
void sim_enter_per_thread(void);
void sim_leave_per_thread(void);
bool sim_per_thread(void); /* the call came through a _ptsz or _ptds name */

/* cuda_handle.c */
void handle_add(const void *object, enum sim_kind kind);
void handle_remove(const void *object);
bool handle_is(const void *object, enum sim_kind kind);

/* cuda_context.c */
CUresult context_current(struct sim_context **context);
CUresult context_top(struct sim_context **context); /* the same for one that a fault has ended */
CUresult context_get(CUcontext handle, struct sim_context **context); /* NULL: the current one */

/* cuda_range.c: all ranges by address */
struct sim_range *range_add(const struct sim_range *range);
struct sim_range *range_find(uint64_t address); /* the one `address` lies in */
struct sim_range *range_exact(uint64_t base);
struct sim_range *range_from(uint64_t address); /* the first that ends behind `address` */
void range_remove(struct sim_range *range);
bool range_covers(uint64_t address, uint64_t size, int access); /* all of it is GPU-accessible */
struct sim_range *range_of_context(const struct sim_context *context);

/* cuda_memory.c */
void *memory_map(uint64_t size);
void memory_unmap(uint64_t base, uint64_t size);
CUresult memory_free(struct sim_range *range);
void memory_end_context(struct sim_context *context);
CUresult memory_take(uint32_t gpu, uint64_t bytes);
uint64_t memory_round(uint64_t bytes, uint64_t unit);

/* cuda_vmm.c, cuda_pool.c, cuda_array.c, cuda_module.c */
CUresult pool_free(struct sim_range *range);
void pool_settle(uint32_t gpu); /* gives back what passes the release threshold, if not locked */
struct sim_pool *pool_default(CUdevice device);
void pool_end_gpu(uint32_t gpu); /* the process's last context there has ended */
void array_end_context(struct sim_context *context);
void module_end_context(struct sim_context *context);

#endif
