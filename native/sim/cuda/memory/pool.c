/* Memory pools: how they allocate, free and shrink. See pool.h. */
#include "cuda/memory/pool.h"

#include "cuda/core/context_end.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define UNIT 512u

static struct sim_pool *pools;

/* Whether the process has a live context on the GPU besides `ending`. */
static bool gpu_in_use(uint32_t gpu, const struct sim_context *ending)
{
	for (const struct sim_context *c = sim.contexts; c; c = c->next)
		if (c != ending && c->live && c->gpu == gpu)
			return true;
	return false;
}

/* Pools belong to no context: they are emptied when the process's last context on their GPU ends. */
static void end_context(struct sim_context *context)
{
	if (gpu_in_use(context->gpu, context))
		return;
	for (struct sim_pool *pool = pools; pool; pool = pool->next)
		if (pool->gpu == context->gpu)
			pool_empty(pool);
}

struct sim_pool *pool_make(CUdevice device, const CUmemPoolProps *properties)
{
	struct sim_pool *pool = calloc(1, sizeof(*pool));
	if (!pool)
		return NULL;
	pool->device = device;
	pool->gpu = sim.devices[device].gpu;
	pool->chunks = pages_round(sim.machine.shape.memory, SIM_CHUNK) / SIM_CHUNK * 4;
	pool->backed = calloc(pool->chunks, 1);
	pool->base = (uint64_t)pages_map(pool->chunks * SIM_CHUNK);
	pool->properties = *properties;
	pool->max_size = properties->maxSize ? properties->maxSize : UINT64_MAX;
	pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
	if (!pool->backed || !pool->base) {
		free(pool->backed);
		free(pool);
		return NULL;
	}
	pool->next = pools;
	pools = pool;
	handle_add(pool, SIM_POOL);
	context_at_end(CONTEXT_END_POOLS, end_context);
	return pool;
}

struct sim_pool *pool_default(CUdevice device)
{
	struct sim_device *d = &sim.devices[device];
	if (!d->default_pool) {
		CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
		                                          .id = device}};
		d->default_pool = pool_make(device, &properties);
		if (d->default_pool)
			d->default_pool->is_default = true;
		d->pool = d->pool ? d->pool : d->default_pool;
	}
	return d->default_pool;
}

struct sim_pool *pool_current(CUdevice device)
{
	struct sim_pool *pool = pool_default(device);
	return sim.devices[device].pool ? sim.devices[device].pool : pool;
}

/* Whether an allocation in `stream` can use the addresses of `piece`. */
static bool passed(const struct sim_piece *piece, const struct sim_stream *stream)
{
	if (!piece->freed)
		return false;
	if (stream && stream->id == piece->stream_id)
		return true;
	for (struct sim_context *c = sim.contexts; c; c = c->next)
		for (struct sim_stream *s = c->streams; s; s = s->next)
			if (s->id == piece->stream_id)
				return s->done >= piece->sequence;
	return true;
}

/* Drops freed pieces whose addresses `stream` can use; NULL: any stream. */
static void tidy(struct sim_pool *pool, const struct sim_stream *stream)
{
	for (struct sim_piece **at = &pool->pieces; *at;) {
		struct sim_piece *piece = *at;
		if (!passed(piece, stream)) {
			at = &piece->next;
			continue;
		}
		*at = piece->next;
		free(piece);
	}
}

void pool_shrink(struct sim_pool *pool, uint64_t keep)
{
	tidy(pool, NULL);
	if (pool->reserved <= keep)
		return;
	uint8_t *in_use = calloc(pool->chunks, 1);
	if (!in_use)
		return;
	for (const struct sim_piece *p = pool->pieces; p; p = p->next)
		for (uint64_t c = (p->base - pool->base) / SIM_CHUNK;
		     c <= (p->base + p->size - 1 - pool->base) / SIM_CHUNK; c++)
			in_use[c] = 1;
	for (uint64_t c = pool->chunks; c-- && pool->reserved > keep;) {
		if (!pool->backed[c] || in_use[c])
			continue;
		pool->backed[c] = 0;
		pool->reserved -= SIM_CHUNK;
		madvise((void *)(pool->base + c * SIM_CHUNK), SIM_CHUNK, MADV_DONTNEED);
		machine_give(&sim.machine, pool->gpu, SIM_CHUNK);
	}
	free(in_use);
}

void pool_trim(uint32_t gpu)
{
	if (sim_is_locked())
		return;
	for (struct sim_pool *pool = pools; pool; pool = pool->next)
		if (pool->gpu == gpu)
			pool_shrink(pool, pool->threshold);
}

/* Takes device memory for the chunks under [base, base + size) that have none. */
static CUresult back_chunks(struct sim_pool *pool, uint64_t base, uint64_t size)
{
	uint64_t first = (base - pool->base) / SIM_CHUNK,
			 last = (base + size - 1 - pool->base) / SIM_CHUNK, more = 0;
	for (uint64_t c = first; c <= last; c++)
		more += pool->backed[c] ? 0 : SIM_CHUNK;
	if (pool->reserved + more > pool->max_size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (more)
		SIM_TRY(pages_take(pool->gpu, more));
	memset(&pool->backed[first], 1, last - first + 1);
	pool->reserved += more;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
	return CUDA_SUCCESS;
}

static struct sim_piece *find(struct sim_pool *pool, uint64_t base)
{
	struct sim_piece *piece = pool->pieces;
	while (piece->freed || piece->base != base)
		piece = piece->next;
	return piece;
}

void pool_empty(struct sim_pool *pool)
{
	for (struct sim_piece *p = pool->pieces; p; p = p->next) {
		if (!p->freed)
			range_remove(range_exact(p->base));
		p->freed = true;
		p->stream_id = 0;
	}
	pool->used = 0;
	pool_shrink(pool, 0);
}

static void discard(struct sim_pool *pool)
{
	for (struct sim_context *c = sim.contexts; c; c = c->next)
		if (c->live && c->gpu == pool->gpu)
			context_wait(c);
	pool_empty(pool);
	pages_unmap(pool->base, pool->chunks * SIM_CHUNK);
	struct sim_pool **at = &pools;
	while (*at != pool)
		at = &(*at)->next;
	*at = pool->next;
	free(pool->backed);
	free(pool);
}

/* Whether the pool has allocations; they keep a destroyed pool alive. */
static bool is_in_use(const struct sim_pool *pool)
{
	for (const struct sim_piece *p = pool->pieces; p; p = p->next)
		if (!p->freed)
			return true;
	return false;
}

static void end_if_unused(struct sim_pool *pool)
{
	if (pool->destroyed && !is_in_use(pool))
		discard(pool);
}

/* cuMemFree of such memory gives its chunks back at once. As with NVIDIA's driver, the pool's count of
 * bytes in use still includes it. */
static void release(const struct sim_range *range)
{
	struct sim_pool *pool = range->owner;
	find(pool, range->base)->freed = true;
	pool_shrink(pool, pool->threshold);
	end_if_unused(pool);
}

static CUresult allocate(struct sim_pool *pool, struct sim_stream *stream, uint64_t size,
                         uint64_t *out)
{
	uint64_t need = pages_round(size, UNIT), base = pool->base;
	if (need > sim.machine.shape.memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	tidy(pool, stream);
	struct sim_piece **at = &pool->pieces;
	for (; *at && (*at)->base - base < need; at = &(*at)->next)
		base = pages_round((*at)->base + (*at)->size, UNIT);
	if (base + need > pool->base + pool->chunks * SIM_CHUNK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	SIM_TRY(back_chunks(pool, base, need));
	struct sim_piece *piece = malloc(sizeof(*piece));
	struct sim_range range = {.base = base,
	                          .size = size,
	                          .memory = SIM_POOLED,
	                          .gpu = pool->gpu,
	                          .owner = pool,
	                          .release = release};
	if (!piece || !range_add(&range)) {
		free(piece);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*piece = (struct sim_piece){.base = base, .size = size, .next = *at};
	*at = piece;
	pool->used += size;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	*out = base;
	return CUDA_SUCCESS;
}

static CUresult allocate_async(CUdeviceptr *address, size_t size, struct sim_pool *pool,
                               CUstream handle)
{
	struct sim_stream *stream;
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(handle, &stream));
	if (!pool)
		pool = pool_current(stream->context->device);
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*address = 0;
	if (!size)
		return CUDA_SUCCESS;
	if (stream->capture)
		return CUDA_ERROR_NOT_SUPPORTED;
	uint64_t base = 0;
	CUresult result = allocate(pool, stream, size, &base);
	*address = base;
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
	SIM_ENTER();
	return allocate_async(address, size, NULL, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool,
                                 CUstream stream)
{
	SIM_ENTER();
	if (!handle_is(pool, SIM_POOL))
		return CUDA_ERROR_INVALID_VALUE;
	return allocate_async(address, size, (struct sim_pool *)pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!address)
		return CUDA_SUCCESS;
	SIM_TRY(stream_get(handle, &stream));
	struct sim_range *range = range_exact(address);
	if (!range || range->memory > SIM_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->capture)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (range->memory != SIM_POOLED) {
		SIM_TRY(stream_wait(stream));
		range = range_wait(address);
		if (!range)
			return CUDA_ERROR_INVALID_VALUE;
		range_free(range);
		return CUDA_SUCCESS;
	}
	struct sim_pool *pool = range->owner;
	struct sim_piece *piece = find(pool, address);
	piece->freed = true;
	piece->stream_id = stream->id;
	piece->sequence = stream->submitted;
	pool->used -= range->size;
	range_remove(range);
	end_if_unused(pool);
	return CUDA_SUCCESS;
}

void pool_destroy(struct sim_pool *pool)
{
	handle_remove(pool);
	pool->destroyed = true;
	end_if_unused(pool);
}
