#include "allocation.h"

#include "aliquot/ledger.h"
#include "exported.h"
#include "page.h"
#include "physical.h"
#include "pool.h"
#include "session.h"
#include "swap/places.h"
#include "swap/spill.h"

struct allocation_map allocated_pointers, allocated_arrays, allocated_imports, allocated_limits;

/* Seen on a GPU: more than 1 MiB comes in whole pages of 2 MiB. */
uint64_t allocation_cost(uint64_t bytes)
{
	if (bytes <= PAGE_LARGEST)
		return bytes;
	uint64_t rounded = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	return rounded < bytes ? UINT64_MAX : rounded;
}

void allocation_set_cost(struct allocation_request *request, uint64_t bytes)
{
	bool small = bytes <= PAGE_LARGEST;
	request->bytes = small ? PAGE_BYTES : allocation_cost(bytes);
	request->kind = small ? ALLOCATION_SHARED_PAGE : ALLOCATION_OWN_PAGES;
}

bool allocation_pitched_bytes(size_t width, size_t height, unsigned element, size_t granule,
                              uint64_t *bytes)
{
	size_t row;
	return width != 0 && height != 0 && (element == 4 || element == 8 || element == 16) &&
	       !__builtin_add_overflow(width, granule - 1, &row) &&
	       !__builtin_mul_overflow(row / granule * granule, height, bytes);
}

bool allocation_in_current_context(struct allocation_request *request)
{
	request->context = NULL;
	request->slice = session_slice_of_current_context();
	return request->slice != SESSION_NO_SLICE &&
	       REAL(cuCtxGetCurrent)(&request->context) == CUDA_SUCCESS;
}

/* --- one allocation --------------------------------------------------------------------------- */

/* What is charged before the driver is asked: a small array may need one more page. */
static uint64_t charge_of(const struct allocation_request *request)
{
	return request->kind == ALLOCATION_SMALL_ARRAY ? PAGE_BYTES : request->bytes;
}

bool allocation_charge(const struct allocation_request *request)
{
	if (!pools_charge(request->slice, charge_of(request)))
		return false;
	if (request->kind == ALLOCATION_MANAGED)
		session_count_managed(request->slice, (int64_t)request->bytes);
	return true;
}

/* Count the allocation out of its page, if it shares one; returns the bytes to give back to the
 * slice, and their mark. */
static uint64_t count_out(const struct allocation *allocation, uint64_t *mark)
{
	*mark = allocation->mark;
	switch (allocation->kind) {
	case ALLOCATION_POOLED:
		return 0;
	case ALLOCATION_SHARED_PAGE:
		return page_count_out(allocation->key, mark) ? PAGE_BYTES : 0;
	case ALLOCATION_SMALL_ARRAY:
		return page_empty(allocation->slice, allocation->bytes) ? PAGE_BYTES : 0;
	default:
		return ledger_round(allocation->bytes);
	}
}

static void release(const struct allocation *allocation)
{
	uint64_t mark, bytes = count_out(allocation, &mark);
	exported_release(mark, allocation->slice, bytes);
	if (allocation->kind == ALLOCATION_MANAGED)
		session_count_managed(allocation->slice, -(int64_t)allocation->bytes);
}

/* If there is no memory for the entry, the charge stays until the process ends. */
static void remember(struct allocation_map *map, const struct allocation *allocation)
{
	struct allocation replaced;
	allocation_map_put(map, allocation, &replaced);
	if (replaced.key == 0)
		return;
	if (replaced.kind == ALLOCATION_POOLED)
		pool_freed_async(replaced.pool, replaced.bytes);
	else
		release(&replaced);
}

CUresult allocation_finish(const struct allocation_request *request, CUresult result, uint64_t key)
{
	struct allocation allocation = {
		.key = key,
		.bytes = request->bytes,
		.context = request->context,
		.shadow = request->shadow,
		.slice = request->slice,
		.kind = request->kind,
	};
	bool is_charge_needed = result == CUDA_SUCCESS;
	if (is_charge_needed && request->kind == ALLOCATION_SHARED_PAGE)
		is_charge_needed = page_count_in(key);
	else if (is_charge_needed && request->kind == ALLOCATION_SMALL_ARRAY)
		is_charge_needed = page_fill(request->slice, request->bytes);
	if (!is_charge_needed && request->takes_spare)
		spill_return_spare();
	else if (!is_charge_needed)
		session_release(request->slice, charge_of(request));
	if (result != CUDA_SUCCESS && request->kind == ALLOCATION_MANAGED)
		session_count_managed(request->slice, -(int64_t)request->bytes);
	if (result == CUDA_SUCCESS)
		remember(request->map, &allocation);
	return result;
}

CUresult allocation_freed(struct allocation_map *map, const struct allocation *allocation,
                          CUresult result)
{
	if (allocation && result == CUDA_SUCCESS)
		release(allocation);
	else if (allocation)
		remember(map, allocation);
	return result;
}

bool allocation_exported(CUdeviceptr base, int descriptor)
{
	allocation_map_lock(&allocated_pointers);
	struct allocation *allocation = allocation_map_find(&allocated_pointers, base);
	if (allocation && allocation->kind == ALLOCATION_SHARED_PAGE)
		page_exported(base, descriptor);
	else if (allocation)
		allocation->mark = exported_descriptor(allocation->mark, descriptor);
	allocation_map_unlock(&allocated_pointers);
	return allocation != NULL;
}

void allocation_put_pooled(CUdeviceptr pointer, uint64_t bytes, uint32_t slice, CUmemoryPool pool)
{
	struct allocation allocation = {.key = pointer,
	                                .bytes = bytes,
	                                .pool = pool,
	                                .slice = slice,
	                                .kind = ALLOCATION_POOLED};
	remember(&allocated_pointers, &allocation);
}

/* --- all allocations of a context ------------------------------------------------------------- */

static void move_of_context(struct allocation_map *from, CUcontext context,
                            struct allocation_map *to)
{
	struct allocation replaced;
	allocation_map_lock(from);
	for (uint64_t place = 0; place < from->map.capacity;) {
		struct allocation *allocation = allocation_map_at(from, place);
		if (allocation && allocation->pool == NULL && allocation->context == context &&
		    allocation_map_put(to, allocation, &replaced))
			allocation_map_remove(from, allocation); /* another may be here now: look again */
		else
			place++;
	}
	allocation_map_unlock(from);
}

void allocations_take(CUcontext context, struct context_allocations *out)
{
	*out = (struct context_allocations){.context = context};
	places_context_ending(context, out);
	move_of_context(&allocated_pointers, context, &out->pointers);
	move_of_context(&allocated_arrays, context, &out->arrays);
	move_of_context(&allocated_imports, context, &out->imports);
	move_of_context(&allocated_limits, context, &out->limits);
}

struct context_sums {
	uint64_t bytes[ALIQUOT_MAX_GPUS], managed[ALIQUOT_MAX_GPUS];
};

static void count_all_out(struct allocation_map *map, struct context_sums *sums)
{
	for (uint64_t place = 0; place < map->map.capacity; place++) {
		const struct allocation *allocation = allocation_map_at(map, place);
		if (!allocation)
			continue;
		uint64_t mark, bytes = count_out(allocation, &mark);
		if (mark == EXPORTED_NOT)
			sums->bytes[allocation->slice] += bytes;
		else
			exported_release(mark, allocation->slice, bytes);
		if (allocation->kind == ALLOCATION_MANAGED)
			sums->managed[allocation->slice] += allocation->bytes;
	}
	allocation_map_clear(map);
}

void allocations_release(struct context_allocations *allocations)
{
	struct context_sums sums = {0};
	physical_context_ended(allocations->context);
	places_context_ended(allocations);
	count_all_out(&allocations->pointers, &sums);
	count_all_out(&allocations->arrays, &sums);
	count_all_out(&allocations->imports, &sums);
	count_all_out(&allocations->limits, &sums);
	for (uint32_t slice = 0; slice < ALIQUOT_MAX_GPUS; slice++) {
		session_release(slice, sums.bytes[slice]);
		session_count_managed(slice, -(int64_t)sums.managed[slice]);
	}
}

static void restore_all(struct allocation_map *from, struct allocation_map *to)
{
	for (uint64_t place = 0; place < from->map.capacity; place++) {
		const struct allocation *allocation = allocation_map_at(from, place);
		if (allocation)
			remember(to, allocation);
	}
	allocation_map_clear(from);
}

void allocations_restore(struct context_allocations *allocations)
{
	places_context_stays(allocations);
	restore_all(&allocations->pointers, &allocated_pointers);
	restore_all(&allocations->arrays, &allocated_arrays);
	restore_all(&allocations->imports, &allocated_imports);
	restore_all(&allocations->limits, &allocated_limits);
}
