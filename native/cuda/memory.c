/* The calls that allocate and free by pointer, and those that say how much memory there is.
 *
 * Arguments that the driver would refuse go to the driver, so that its answer is the driver's own.
 * Only what it could give is charged. */
#include "allocation.h"
#include "exported.h"
#include "page.h"
#include "physical.h"
#include "pool.h"
#include "session.h"
#include "swap/places.h"
#include "swap/spill.h"
#include "swap/swappable.h"

#define PITCH_GRANULE 512u
#define MANAGED_GRANULE (UINT64_C(64) << 10)

/* By size of pointers: as programs of CUDA 3.1 call it, and as all others do. */
#define ALLOCATE(name, symbol, address, size)                                                      \
	name(__typeof__(&symbol) real, address *pointer, size bytes)                                   \
	{                                                                                              \
		struct allocation_request request = {.map = &allocated_pointers};                          \
		allocation_set_cost(&request, bytes);                                                      \
		if (!session_is_open())                                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                     \
		if (!pointer || bytes == 0 || !allocation_in_current_context(&request))                    \
			return real(pointer, bytes);                                                           \
		if (!allocation_charge(&request)) {                                                        \
			*pointer = 0;                                                                          \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
		}                                                                                          \
		CUresult result = real(pointer, bytes);                                                    \
		return allocation_finish(&request, result, *pointer);                                      \
	}

ALLOCATE(static CUresult alloc_fixed, cuMemAlloc_v2, CUdeviceptr, size_t)
ALLOCATE(CUresult hook_alloc_v1, cuMemAlloc, CUdeviceptr_v1, unsigned)

/* In a grant with `spill`: whether the slice has room for the allocation and what must stay free beside it. */
static bool fits_slice(uint64_t bytes)
{
	uint32_t slice = session_slice_of_current_context();
	uint64_t wanted = allocation_cost(bytes) +
	                  (bytes > PAGE_LARGEST ? SPILL_LARGE_LEAVES : SPILL_SMALL_LEAVES);
	if (slice == SESSION_NO_SLICE || session_free_bytes(slice) >= wanted)
		return true;
	if (wanted < bytes || !pools_charge(slice, wanted))
		return false;
	session_release(slice, wanted);
	return true;
}

/* Where an allocation goes: memory that can leave the GPU; or the GPU's, and the host's if that is full. */
CUresult hook_alloc(__typeof__(&cuMemAlloc_v2) real, CUdeviceptr *pointer, size_t bytes)
{
	if (session_is_open() && swappable_is_on())
		return swappable_alloc(real, false, pointer, bytes);
	bool spills = session_is_open() && spill_is_on();
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!spills || fits_slice(bytes))
		result = alloc_fixed(real, pointer, bytes);
	return spills && result == CUDA_ERROR_OUT_OF_MEMORY
			   ? swappable_alloc(real, true, pointer, bytes)
			   : result;
}

CUresult hook_alloc_managed(__typeof__(&cuMemAllocManaged) real, CUdeviceptr *pointer, size_t bytes,
                            unsigned flags)
{
	uint64_t granules = bytes / MANAGED_GRANULE + (bytes % MANAGED_GRANULE != 0);
	struct allocation_request request = {.map = &allocated_pointers,
	                                     .bytes = granules * MANAGED_GRANULE,
	                                     .kind = ALLOCATION_MANAGED};
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!pointer || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) ||
	    !allocation_in_current_context(&request))
		return real(pointer, bytes, flags);
	if (!allocation_charge(&request)) {
		*pointer = 0;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = real(pointer, bytes, flags);
	return allocation_finish(&request, result, *pointer);
}

/* A GPU may have wider rows than PITCH_GRANULE: charge the rest. */
static bool charge_rows(struct allocation_request *request, uint64_t bytes)
{
	uint64_t cost = allocation_cost(bytes);
	if (cost <= request->bytes)
		return true;
	if (!pools_charge(request->slice, cost - request->bytes))
		return false;
	request->bytes = cost;
	request->kind = ALLOCATION_OWN_PAGES;
	return true;
}

#define ALLOCATE_PITCH(name, symbol, address, size, free)                                          \
	name(__typeof__(&symbol) real, address *pointer, size *pitch, size width, size height,         \
	     unsigned element)                                                                         \
	{                                                                                              \
		struct allocation_request request = {.map = &allocated_pointers};                          \
		uint64_t expected;                                                                         \
		if (!session_is_open())                                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                     \
		if (!pointer || !pitch ||                                                                  \
		    !allocation_pitched_bytes(width, height, element, PITCH_GRANULE, &expected) ||         \
		    !allocation_in_current_context(&request))                                              \
			return real(pointer, pitch, width, height, element);                                   \
		allocation_set_cost(&request, expected);                                                   \
		if (!allocation_charge(&request)) {                                                        \
			*pointer = *pitch = 0;                                                                 \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
		}                                                                                          \
		CUresult result = real(pointer, pitch, width, height, element);                            \
		if (result == CUDA_SUCCESS && !charge_rows(&request, (uint64_t)*pitch * height)) {         \
			REAL(free)(*pointer);                                                                  \
			session_release(request.slice, request.bytes);                                         \
			*pointer = *pitch = 0;                                                                 \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
		}                                                                                          \
		return allocation_finish(&request, result, *pointer);                                      \
	}

ALLOCATE_PITCH(static CUresult alloc_pitch_fixed, cuMemAllocPitch_v2, CUdeviceptr, size_t,
               cuMemFree_v2)
ALLOCATE_PITCH(CUresult hook_alloc_pitch_v1, cuMemAllocPitch, CUdeviceptr_v1, unsigned, cuMemFree)

CUresult hook_alloc_pitch(__typeof__(&cuMemAllocPitch_v2) real, CUdeviceptr *pointer, size_t *pitch,
                          size_t width, size_t height, unsigned element)
{
	uint64_t bytes;
	if (session_is_open() && swappable_is_on())
		return swappable_alloc_pitch(real, false, pointer, pitch, width, height, element);
	bool spills = session_is_open() && spill_is_on() &&
	              allocation_pitched_bytes(width, height, element, PITCH_GRANULE, &bytes);
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!spills || fits_slice(bytes))
		result = alloc_pitch_fixed(real, pointer, pitch, width, height, element);
	return spills && result == CUDA_ERROR_OUT_OF_MEMORY
			   ? swappable_alloc_pitch(real, true, pointer, pitch, width, height, element)
			   : result;
}

#define FREE(name, symbol, address)                                                                \
	CUresult name(__typeof__(&symbol) real, address pointer)                                       \
	{                                                                                              \
		struct allocation allocation;                                                              \
		if (!session_is_open())                                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                     \
		if (!allocation_map_take(&allocated_pointers, pointer, &allocation))                       \
			return real((address)places_unknown(pointer));                                         \
		if (allocation.shadow)                                                                     \
			return swappable_free(&allocation);                                                    \
		CUresult result = real(pointer);                                                           \
		if (allocation.kind != ALLOCATION_POOLED || result != CUDA_SUCCESS)                        \
			return allocation_freed(&allocated_pointers, &allocation, result);                     \
		pool_freed(allocation.pool, allocation.bytes);                                             \
		return result;                                                                             \
	}

FREE(hook_free, cuMemFree_v2, CUdeviceptr)
FREE(hook_free_v1, cuMemFree, CUdeviceptr_v1)

CUresult hook_free_async(__typeof__(&cuMemFreeAsync) real, CUdeviceptr pointer, CUstream stream)
{
	struct allocation allocation;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!allocation_map_take(&allocated_pointers, pointer, &allocation))
		return real(places_unknown(pointer), stream);
	if (allocation.shadow)
		return swappable_free_async(&allocation, real, stream);
	CUresult result = real(pointer, stream);
	if (allocation.kind != ALLOCATION_POOLED || result != CUDA_SUCCESS)
		return allocation_freed(&allocated_pointers, &allocation, result);
	pool_freed_async(allocation.pool, allocation.bytes);
	return result;
}

CUresult hook_total_memory(__typeof__(&cuDeviceTotalMem_v2) real, size_t *bytes, CUdevice device)
{
	CUresult result = real(bytes, device);
	uint32_t slice = session_slice_of_device(device);
	if (result == CUDA_SUCCESS && slice != SESSION_NO_SLICE)
		*bytes = session_limits()->slices[slice].limit_bytes + spill_total_bytes();
	return result;
}

CUresult hook_total_memory_v1(__typeof__(&cuDeviceTotalMem) real, unsigned *bytes, CUdevice device)
{
	CUresult result = real(bytes, device);
	uint32_t slice = session_slice_of_device(device);
	if (result == CUDA_SUCCESS && slice != SESSION_NO_SLICE &&
	    session_limits()->slices[slice].limit_bytes < *bytes)
		*bytes = (unsigned)session_limits()->slices[slice].limit_bytes;
	return result;
}

CUresult hook_memory_info(__typeof__(&cuMemGetInfo_v2) real, size_t *free_bytes,
                          size_t *total_bytes)
{
	CUresult result = real(free_bytes, total_bytes);
	uint32_t slice = session_is_open() ? session_slice_of_current_context() : SESSION_NO_SLICE;
	if (result != CUDA_SUCCESS || slice == SESSION_NO_SLICE)
		return result;
	exported_settle_sometimes();
	/* Less may be free on the GPU than in the slice. */
	if (free_bytes && session_free_bytes(slice) < *free_bytes)
		*free_bytes = session_free_bytes(slice);
	if (free_bytes)
		*free_bytes += spill_free_bytes();
	if (total_bytes)
		*total_bytes = session_limits()->slices[slice].limit_bytes + spill_total_bytes();
	return result;
}

CUresult hook_memory_info_v1(__typeof__(&cuMemGetInfo) real, unsigned *free_bytes,
                             unsigned *total_bytes)
{
	CUresult result = real(free_bytes, total_bytes);
	uint32_t slice = session_is_open() ? session_slice_of_current_context() : SESSION_NO_SLICE;
	if (result != CUDA_SUCCESS || slice == SESSION_NO_SLICE)
		return result;
	uint64_t left = session_free_bytes(slice), all = session_limits()->slices[slice].limit_bytes;
	if (free_bytes && left < *free_bytes)
		*free_bytes = (unsigned)left;
	if (total_bytes && all < *total_bytes)
		*total_bytes = (unsigned)all;
	return result;
}

/* A descriptor of a range of memory, for other devices (dma-buf). It may lie inside an allocation. */
CUresult hook_range_handle(__typeof__(&cuMemGetHandleForAddressRange) real, void *handle,
                           CUdeviceptr pointer, size_t bytes, CUmemRangeHandleType type,
                           unsigned long long flags)
{
	struct place view;
	if (places_find(pointer, &view))
		places_fix(pointer); /* others may use it from now on, unseen */
	CUresult result = real(handle, pointer, bytes, type, flags);
	CUdeviceptr base = pointer;
	if (result != CUDA_SUCCESS || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || !session_is_open())
		return result;
	if (places_find(pointer, &view))
		base = view.base;
	else
		REAL(cuMemGetAddressRange_v2)(&base, NULL, pointer);
	if (!allocation_exported(base, *(const int *)handle))
		physical_range_exported(pointer, bytes, *(const int *)handle);
	return result;
}
