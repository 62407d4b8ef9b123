/* The calls that allocate from pools, in stream order, and those that create and destroy pools. */
#include "aliquot/ledger.h"
#include "allocation.h"
#include "pool.h"
#include "session.h"

/* One of the four calls that allocate in stream order. */
struct request {
	__typeof__(&cuMemAllocAsync) allocate; /* from the device's current pool, or NULL */
	__typeof__(&cuMemAllocFromPoolAsync) allocate_from;
	CUdeviceptr *pointer;
	size_t bytes;
	CUmemoryPool pool;
	CUstream stream;
};

static CUresult call_driver(const struct request *request)
{
	if (request->allocate)
		return request->allocate(request->pointer, request->bytes, request->stream);
	return request->allocate_from(request->pointer, request->bytes, request->pool, request->stream);
}

static bool is_per_thread(const struct request *request)
{
	return request->allocate == REAL(cuMemAllocAsync_ptsz) ||
	       request->allocate_from == REAL(cuMemAllocFromPoolAsync_ptsz);
}

static void free_again(const struct request *request)
{
	(is_per_thread(request) ? REAL(cuMemFreeAsync_ptsz) : REAL(cuMemFreeAsync))(*request->pointer,
	                                                                            request->stream);
	*request->pointer = 0;
	pool_freed_async(request->pool, 0);
}

/* In a capture nothing is allocated: the driver makes a node, and the graph's launch allocates
 * (graph.c). We ask this before anything else, since even a question about a pool would break the
 * capture. */
static bool is_capturing(const struct request *request)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = (is_per_thread(request)
	                       ? REAL(cuStreamIsCapturing_ptsz)
	                       : REAL(cuStreamIsCapturing))(request->stream, &status);
	return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult allocate(const struct request *request)
{
	uint32_t slice = request->pool ? pool_slice(request->pool) : SESSION_NO_SLICE;
	uint64_t step;
	if (!request->pointer || request->bytes == 0 || slice == SESSION_NO_SLICE)
		return call_driver(request);
	if (!pool_charge_step(request->pool, slice, request->bytes, &step)) {
		*request->pointer = 0;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = call_driver(request);
	if (!pool_settle(request->pool, step) && result == CUDA_SUCCESS) {
		free_again(request);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result == CUDA_SUCCESS) {
		uint64_t bytes = ledger_round(request->bytes);
		pool_allocated(request->pool, bytes);
		allocation_put_pooled(*request->pointer, bytes, slice, request->pool);
	}
	return result;
}

CUresult hook_alloc_from_pool(__typeof__(&cuMemAllocFromPoolAsync) real, CUdeviceptr *pointer,
                              size_t bytes, CUmemoryPool pool, CUstream stream)
{
	struct request request = {.allocate_from = real,
	                          .pointer = pointer,
	                          .bytes = bytes,
	                          .pool = pool,
	                          .stream = stream};
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	return is_capturing(&request) ? call_driver(&request) : allocate(&request);
}

CUresult hook_alloc_async(__typeof__(&cuMemAllocAsync) real, CUdeviceptr *pointer, size_t bytes,
                          CUstream stream)
{
	struct request request = {.allocate = real,
	                          .pointer = pointer,
	                          .bytes = bytes,
	                          .stream = stream};
	CUdevice device;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (is_capturing(&request))
		return call_driver(&request);
	if (session_device_of_stream(stream, &device))
		REAL(cuDeviceGetMemPool)(&request.pool, device);
	return allocate(&request);
}

CUresult hook_pool_create(__typeof__(&cuMemPoolCreate) real, CUmemoryPool *handle,
                          const CUmemPoolProps *properties)
{
	CUresult result = real(handle, properties);
	if (result != CUDA_SUCCESS)
		return result;
	bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	if (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
		session_tie(ALIQUOT_TIE_MANAGED);
	pool_remember(*handle,
	              on_device ? session_slice_of_device(properties->location.id) : SESSION_NO_SLICE);
	return result;
}

CUresult hook_pool_export(__typeof__(&cuMemPoolExportToShareableHandle) real, void *shareable,
                          CUmemoryPool pool, CUmemAllocationHandleType type,
                          unsigned long long flags)
{
	CUresult result = real(shareable, pool, type, flags);
	if (result == CUDA_SUCCESS && session_is_open())
		pool_exported(pool);
	return result;
}

/* The process that exported the pool is charged for its memory. */
CUresult hook_pool_import(__typeof__(&cuMemPoolImportFromShareableHandle) real,
                          CUmemoryPool *handle, void *shareable, CUmemAllocationHandleType type,
                          unsigned long long flags)
{
	CUresult result = real(handle, shareable, type, flags);
	if (result == CUDA_SUCCESS)
		pool_remember(*handle, SESSION_NO_SLICE);
	return result;
}

CUresult hook_pool_destroy(__typeof__(&cuMemPoolDestroy) real, CUmemoryPool pool)
{
	CUresult result = real(pool);
	if (result == CUDA_SUCCESS && pool)
		pool_destroyed(pool);
	return result;
}

CUresult hook_pool_trim(__typeof__(&cuMemPoolTrimTo) real, CUmemoryPool handle, size_t keep)
{
	CUresult result = real(handle, keep);
	if (result == CUDA_SUCCESS && handle)
		pool_settle(handle, 0);
	return result;
}
