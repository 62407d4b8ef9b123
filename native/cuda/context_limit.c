/* cuCtxSetLimit: what the driver takes for the limits of a context is charged when a limit grows.
 *
 * Seen on an H200: the stack takes its size for every thread that the GPU can run at once, as soon as
 * the limit is set, so 64 KiB take 16.5 GiB. The heap of malloc takes its size when the first kernel that
 * uses it starts, long after anybody could refuse it. It is charged when it is set. Until it is used,
 * as much of what the driver took for code may go unnoticed: NVML's figure is then no more than what is
 * charged. The buffer of printf is charged like the heap. */
#include "allocation.h"
#include "session.h"

/* Bytes of the GPU for one unit of the limit; 0: it takes none that we know of. */
static uint64_t bytes_of_unit(CUlimit limit)
{
	CUdevice device;
	int units = 0, threads = 0;
	if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE)
		return 1;
	if (limit != CU_LIMIT_STACK_SIZE || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return 0;
	REAL(cuDeviceGetAttribute)(&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
	REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
	                           device);
	return (uint64_t)units * (uint64_t)threads;
}

/* No two handles of contexts are that near to each other. */
static uint64_t key_of(CUcontext context, CUlimit limit)
{
	return (uint64_t)(uintptr_t)context + (uint64_t)limit + 1;
}

CUresult hook_set_limit(__typeof__(&cuCtxSetLimit) real, CUlimit limit, size_t value)
{
	struct allocation_request request = {.map = &allocated_limits, .kind = ALLOCATION_OWN_PAGES};
	struct allocation charged = {0};
	uint64_t unit = session_is_open() ? bytes_of_unit(limit) : 0;
	size_t before = 0;
	if (unit == 0 || !allocation_in_current_context(&request) ||
	    REAL(cuCtxGetLimit)(&before, limit) != CUDA_SUCCESS) {
		CUresult result = real(limit, value);
		if (result == CUDA_SUCCESS)
			session_driver_allocated();
		return result;
	}
	if (__builtin_mul_overflow(value > before ? value - before : 0, unit, &request.bytes) ||
	    !allocation_charge(&request))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real(limit, value);
	if (result != CUDA_SUCCESS)
		return allocation_finish(&request, result, 0);
	/* One record for the limit: what earlier calls were charged, and this one, or less. */
	uint64_t key = key_of(request.context, limit);
	uint64_t shrunk = value < before ? (before - value) * unit : 0;
	allocation_map_take(&allocated_limits, key, &charged);
	shrunk = shrunk < charged.bytes ? shrunk : charged.bytes;
	request.bytes += charged.bytes - shrunk;
	session_release(request.slice, shrunk);
	return request.bytes ? allocation_finish(&request, result, key) : result;
}
