/* Memory pools: allocation in stream order.
 *
 * A pool is a range of addresses in chunks of 32 MiB. A chunk has device memory while an allocation
 * lies in it. It keeps the memory longer up to the pool's release threshold: the driver gives back
 * what exceeds the threshold when the program waits for a stream, an event or a context. Memory that
 * a stream freed is available to that stream at once, and to others when the stream has reached the
 * free.
 */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "cuda/stream/stream.h"

#define SIM_CHUNK (32 * SIM_MIB)

/* A piece of the pool's addresses: in use, or freed by a stream that has not reached the free yet. */
struct sim_piece {
	uint64_t base, size; /* as the program requested it */
	bool freed;
	uint64_t stream_id, sequence; /* the stream that freed it, and its last operation then */
	struct sim_piece *next;       /* by address */
};

struct sim_pool {
	CUdevice device;
	uint32_t gpu;
	bool is_default;
	bool destroyed; /* by the program; the pool ends with its last allocation */
	CUmemPoolProps properties;
	uint64_t base, chunks;
	uint8_t *backed; /* for each chunk: it has device memory */
	uint64_t reserved, reserved_high, used, used_high, threshold, max_size;
	int reuse[3]; /* follow event dependencies, allow opportunistic, allow internal dependencies */
	struct sim_piece *pieces;
	struct sim_pool *next;
};

/* pool.c. Precondition of every function: the driver's lock is held. */
struct sim_pool *pool_make(CUdevice device, const CUmemPoolProps *properties);
struct sim_pool *pool_default(CUdevice device);
struct sim_pool *pool_current(CUdevice device); /* the pool that cuMemAllocAsync uses */

/* After a wait: gives back what exceeds the release thresholds on a GPU, if the process is not locked. */
void pool_trim(uint32_t gpu);

/* Gives back chunks without allocations until the pool has at most `keep` bytes. */
void pool_shrink(struct sim_pool *pool, uint64_t keep);

/* Frees all allocations in the pool; the program must not use them any more. */
void pool_empty(struct sim_pool *pool);
void pool_destroy(struct sim_pool *pool);

#endif
