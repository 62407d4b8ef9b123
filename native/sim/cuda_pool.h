/* Memory pools, as cuda_pool.c keeps them and cuda_pool_state.c shows them. */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "cuda_stream.h"

#define SIM_CHUNK (32 * SIM_MIB)

/* A piece of the pool's addresses, in use or freed but not yet passed by its stream. */
struct piece {
	uint64_t base, size; /* as it was asked for */
	bool freed;
	uint64_t stream_id, sequence; /* where it was freed */
	struct piece *next;           /* by address */
};

struct sim_pool {
	CUdevice device;
	uint32_t gpu;
	bool is_default;
	bool destroyed; /* by the program; it goes with the last allocation in it */
	CUmemPoolProps properties;
	uint64_t base, chunks;
	uint8_t *held; /* for each chunk: it holds device memory */
	uint64_t reserved, reserved_high, used, used_high, threshold, most;
	int reuse[3]; /* follow event dependencies, allow opportunistic, allow internal dependencies */
	struct piece *pieces;
	struct sim_pool *next;
};

struct sim_pool *pool_make(CUdevice device, const CUmemPoolProps *properties);
struct sim_pool *pool_current(CUdevice device); /* what cuMemAllocAsync uses */

/* Gives back chunks in which nothing lies until no more than `keep` bytes are held. */
void pool_shrink(struct sim_pool *pool, uint64_t keep);

/* Frees all that lies in it; what lay there must not be used any more. */
void pool_empty(struct sim_pool *pool);
void pool_destroy(struct sim_pool *pool);

#endif
