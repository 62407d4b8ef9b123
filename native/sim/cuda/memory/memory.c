/* Linear device memory and managed memory: cuMemAlloc, cuMemAllocManaged, cuMemFree, cuMemGetInfo.
 *
 * An allocation of more than 1 MiB gets its own pages of 2 MiB. Smaller allocations of a context share
 * blocks of 2 MiB, in granules of 512 bytes.
 */
#include "cuda/graph/capture.h"
#include "cuda/memory/ipc.h"
#include "cuda/stream/stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_MAX SIM_MIB
#define GRANULE 512u
#define GRANULES (SIM_PAGE / GRANULE)
#define PITCH 512u

/* A page that small allocations of a context share. */
struct sim_block {
	uint64_t base, id;
	uint32_t used;
	uint8_t taken[GRANULES];
	struct sim_block *next;
};

/* A context of CUDA 3.1, made by cuCtxCreate itself: its pointers have 32 bits. */
static bool is_narrow(const struct sim_context *context)
{
	return context->api < 3020;
}

static CUresult take_pages(struct sim_context *context, uint64_t size, uint64_t *base)
{
	if (size > sim.machine.shape.memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	SIM_TRY(pages_take(context->gpu, size));
	*base = (uint64_t)(is_narrow(context) ? pages_map_low(size) : pages_map(size));
	if (*base)
		return CUDA_SUCCESS;
	machine_give(&sim.machine, context->gpu, size);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The first run of `count` free granules; GRANULES: there is none. */
static uint32_t find_run(const struct sim_block *block, uint32_t count)
{
	uint32_t run = 0;
	for (uint32_t i = 0; i < GRANULES; i++) {
		run = block->taken[i] ? 0 : run + 1;
		if (run == count)
			return i + 1 - count;
	}
	return GRANULES;
}

static CUresult take_small(struct sim_context *context, uint64_t size, uint64_t *base, void **owner)
{
	uint32_t count = (uint32_t)(pages_round(size, GRANULE) / GRANULE), at = GRANULES;
	struct sim_block *block = context->blocks;
	for (; block; block = block->next)
		if (block->used + count <= GRANULES && (at = find_run(block, count)) < GRANULES)
			break;
	if (!block) {
		block = calloc(1, sizeof(*block));
		CUresult result = block ? take_pages(context, SIM_PAGE, &block->base)
		                        : CUDA_ERROR_OUT_OF_MEMORY;
		if (result) {
			free(block);
			return result;
		}
		block->id = ++sim.next_id;
		block->next = context->blocks;
		context->blocks = block;
		at = 0;
	}
	memset(&block->taken[at], 1, count);
	block->used += count;
	*base = block->base + (uint64_t)at * GRANULE;
	*owner = block;
	return CUDA_SUCCESS;
}

uint64_t small_block_id(const struct sim_range *range)
{
	return ((const struct sim_block *)range->owner)->id;
}

static void release_small(const struct sim_range *range)
{
	struct sim_block *block = range->owner;
	struct sim_context *context = range->context;
	uint32_t count = (uint32_t)(pages_round(range->size, GRANULE) / GRANULE);
	memset(&block->taken[(range->base - block->base) / GRANULE], 0, count);
	block->used -= count;
	if (block->used)
		return;
	struct sim_block **at = &context->blocks;
	while (*at != block)
		at = &(*at)->next;
	*at = block->next;
	pages_unmap(block->base, SIM_PAGE);
	ipc_give(context->gpu, block->base, SIM_PAGE);
	free(block);
}

static void release_pages(const struct sim_range *range)
{
	pages_unmap(range->base, range->taken);
	ipc_give(range->gpu, range->base, range->taken);
}

static void release_managed(const struct sim_range *range)
{
	pages_unmap(range->base, pages_round(range->size, SIM_PAGE));
	machine_give_managed(&sim.machine, range->gpu, range->taken);
	sim_self()->managed--;
}

static CUresult allocate(struct sim_context *context, uint64_t size, uint64_t *base)
{
	struct sim_range range = {.size = size, .context = context, .gpu = context->gpu};
	*base = 0;
	if (size > SMALL_MAX) {
		range.memory = SIM_DEVICE;
		range.release = release_pages;
		range.taken = pages_round(size, SIM_PAGE);
		SIM_TRY(take_pages(context, range.taken, &range.base));
	} else {
		range.memory = SIM_SMALL;
		range.release = release_small;
		SIM_TRY(take_small(context, size, &range.base, &range.owner));
	}
	if (!range_add(&range))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*base = range.base;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	*address = 0;
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	uint64_t base;
	CUresult result = allocate(context, size, &base);
	*address = base;
	return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                            unsigned int element)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!address || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	*address = 0;
	*pitch = 0;
	if (!width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	uint64_t row = pages_round(width, PITCH), size, base;
	if (__builtin_mul_overflow(row, height, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	SIM_TRY(allocate(context, size, &base));
	*address = base;
	*pitch = row;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	*address = 0;
	if (!size || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	uint64_t whole = pages_round(size, SIM_PAGE);
	void *map = whole > 64 * sim.machine.shape.memory ? NULL : pages_map(whole);
	if (!map)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct sim_range range = {.base = (uint64_t)map,
	                          .size = size,
	                          .memory = SIM_MANAGED,
	                          .context = context,
	                          .gpu = context->gpu,
	                          .flags = flags,
	                          .release = release_managed};
	range.taken = machine_take_managed(&sim.machine, context->gpu,
	                                   pages_round(size, SIM_MANAGED_PAGE));
	range_add(&range);
	sim_self()->managed++;
	*address = range.base;
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
	SIM_ENTER();
	if (!address)
		return CUDA_SUCCESS;
	struct sim_range *range = range_exact(address);
	if (!range || range->memory > SIM_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	if (range->context)
		SIM_TRY(context_wait(range->context));
	range = range_wait(address);
	if (!range)
		return CUDA_ERROR_INVALID_VALUE;
	range_free(range);
	return CUDA_SUCCESS;
}

static void get_info(const struct sim_context *context, uint64_t *available, uint64_t *total)
{
	uint64_t used = machine_used(&sim.machine, context->gpu);
	*total = machine_memory(&sim.machine, context->gpu) -
	         machine_reserved(&sim.machine, context->gpu);
	*available = used < *total ? *total - used : 0;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	SIM_ENTER_QUERY(return CUDA_ERROR_OPERATING_SYSTEM);
	SIM_CURRENT(context);
	uint64_t left, all;
	get_info(context, &left, &all);
	if (available)
		*available = left;
	if (total)
		*total = all;
	return CUDA_SUCCESS;
}

/* The 32-bit interface of CUDA 3.1 works with contexts of that version only (seen on an H200). */

CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned int size)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!is_narrow(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!address || !size)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t base;
	SIM_TRY(allocate(context, size, &base));
	*address = (CUdeviceptr_v1)base;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width,
                         unsigned int height, unsigned int element)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!is_narrow(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!address || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t row = pages_round(width, PITCH), base;
	SIM_TRY(allocate(context, row * height, &base));
	*address = (CUdeviceptr_v1)base;
	*pitch = (unsigned int)row;
	return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr_v1 address)
{
	return cuMemFree_v2(address);
}

CUresult cuMemGetInfo(unsigned int *available, unsigned int *total)
{
	SIM_ENTER_QUERY(return CUDA_ERROR_OPERATING_SYSTEM);
	SIM_CURRENT(context);
	if (!is_narrow(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	uint64_t left, all;
	get_info(context, &left, &all);
	if (available)
		*available = (unsigned int)(left < UINT32_MAX ? left : UINT32_MAX);
	if (total)
		*total = (unsigned int)(all < UINT32_MAX ? all : UINT32_MAX);
	return CUDA_SUCCESS;
}
