/* Address ranges that the driver knows, and the pages behind them.
 *
 * The allocator that adds a range sets `release`, the function that gives its memory back. Freeing a range
 * (range_free) and ending a context therefore need not know which allocator made the range.
 *
 * Precondition of every function here: the driver's lock is held.
 */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "cuda/core/sim.h"

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

struct sim_range {
	uint64_t base, size;
	enum sim_memory memory;
	uint32_t gpu;
	struct sim_context *context; /* the context whose end frees it; NULL: none */
	uint64_t taken;              /* bytes of the GPU that this range alone took */
	uint32_t flags;
	uint32_t access; /* SIM_MAPPED: PROT_* bits set by cuMemSetAccess */
	bool no_sync;    /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS was set to 0 */
	uint64_t id;
	void *owner; /* the block, pool or physical memory behind it */
	/* Gives its memory back; the range is no longer in the table. NULL: nothing to give back. */
	void (*release)(const struct sim_range *range);
};

/* range.c: all ranges, sorted by address */
struct sim_range *range_add(const struct sim_range *range); /* NULL: out of memory */
struct sim_range *range_find(uint64_t address);             /* the range that contains `address` */
struct sim_range *range_exact(uint64_t base);               /* the range that starts at `base` */
struct sim_range *range_from(uint64_t address); /* the first range that ends after `address` */
void range_remove(struct sim_range *range);
void range_free(struct sim_range *range); /* removes it, then releases its memory */
/* Whether the GPU can access every byte of [address, address + size); `access` is PROT_* bits. */
bool range_covers(uint64_t address, uint64_t size, int access);

/* vmm.c: holds physical memory once more; NULL: that is no handle of any */
struct sim_physical *physical_hold(CUmemGenericAllocationHandle handle);
void physical_drop(struct sim_physical *piece);
uint64_t physical_handle_types(const struct sim_physical *piece);
bool physical_is_host(const struct sim_physical *piece);

/* memory.c: the id of the page that a small allocation shares */
uint64_t small_block_id(const struct sim_range *range);

/* pages.c */
uint64_t pages_round(uint64_t bytes, uint64_t unit); /* up to a multiple of `unit` */
void *pages_map(uint64_t size);                      /* aligned to SIM_PAGE; NULL: out of memory */
void *pages_map_low(uint64_t size);                  /* the same, below 4 GiB */
void pages_unmap(uint64_t base, uint64_t size);
CUresult pages_take(uint32_t gpu, uint64_t bytes); /* device memory for this process */

#endif
