#include "pool.h"

#include "aliquot/ledger.h"
#include "aliquot/lock.h"
#include "memory.h"
#include "session.h"

#define GROWTH (UINT64_C(32) << 20)
#define MAX_POOLS 256

struct pool {
	CUmemoryPool handle; /* NULL: an empty place */
	uint32_t slice;
	bool destroyed;     /* by the program; lives on in the driver until its memory is freed */
	uint64_t charged;   /* in the ledger for it */
	uint64_t in_flight; /* of that, for allocations whose outcome is not known yet */
	uint64_t used;      /* by allocations that are not freed, in the ledger's units */
	uint64_t changes;   /* of the two above: tells a figure that was asked for before */
};

static struct aliquot_lock lock;
static struct pool pools[MAX_POOLS];
static _Atomic bool dirty;

static struct pool *find(CUmemoryPool handle)
{
	for (unsigned i = 0; i < MAX_POOLS; i++)
		if (pools[i].handle == handle)
			return &pools[i];
	return NULL;
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute what)
{
	cuuint64_t value = 0;
	REAL(cuMemPoolGetAttribute)(pool, what, &value);
	return value;
}

static void remember(CUmemoryPool handle, uint32_t slice)
{
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	if (!pool && (pool = find(NULL)))
		*pool = (struct pool){.handle = handle, .slice = slice};
	aliquot_unlock(&lock);
}

/* A pool that the program did not make is the default one of some device. */
static uint32_t slice_of_default(CUmemoryPool handle)
{
	int count = 0;
	REAL(cuDeviceGetCount)(&count);
	for (int device = 0; device < count; device++) {
		CUmemoryPool pool = NULL;
		if (REAL(cuDeviceGetDefaultMemPool)(&pool, device) == CUDA_SUCCESS && pool == handle)
			return session_slice_of_device(device);
	}
	return session_slice_of_current_context();
}

static uint32_t slice_of(CUmemoryPool handle)
{
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	uint32_t slice = pool ? pool->slice : SESSION_NO_SLICE;
	aliquot_unlock(&lock);
	if (slice != SESSION_NO_SLICE)
		return slice;
	slice = slice_of_default(handle);
	if (slice != SESSION_NO_SLICE)
		remember(handle, slice);
	return slice;
}

/* The pool's reserve and the change it belongs to; asked again while another thread settles. Of one
 * that we do not know, or no more, nothing is asked. */
static uint64_t ask_reserved(CUmemoryPool handle, uint64_t *change)
{
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	bool known = pool && !pool->destroyed;
	*change = pool ? pool->changes : 0;
	aliquot_unlock(&lock);
	return known ? attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) : 0;
}

/* Bring the charge to what the pool has; `landed` in-flight bytes are known now.
 * False: the pool has more than was charged, and the slice has no room for it. */
static bool settle(CUmemoryPool handle, uint64_t landed)
{
	uint64_t change, reserved = ask_reserved(handle, &change), back = 0, more = 0;
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	while (pool && pool->changes != change) {
		aliquot_unlock(&lock);
		reserved = ask_reserved(handle, &change);
		aliquot_lock(&lock);
		pool = find(handle);
	}
	uint32_t slice = pool ? pool->slice : SESSION_NO_SLICE;
	if (pool && !pool->destroyed) {
		pool->changes++;
		pool->in_flight -= landed;
		uint64_t target = reserved + pool->in_flight;
		if (target < pool->charged)
			back = pool->charged - target;
		else if (reserved > pool->charged)
			more = reserved - pool->charged;
		pool->charged += more - back;
	}
	aliquot_unlock(&lock);
	session_uncharge(slice, back);
	if (more == 0 || session_reserve(slice, more))
		return true;
	aliquot_lock(&lock);
	if ((pool = find(handle)))
		pool->charged -= more < pool->charged ? more : pool->charged;
	aliquot_unlock(&lock);
	return false;
}

/* Charge the step that the pool may need for `bytes`; 0: none was to be had. */
static uint64_t begin(CUmemoryPool handle, uint32_t slice, uint64_t bytes)
{
	uint64_t step = (bytes + GROWTH - 1) / GROWTH * GROWTH;
	if (step < bytes || !session_charge(slice, step))
		return 0;
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	if (pool) {
		pool->charged += step;
		pool->in_flight += step;
		pool->changes++;
	}
	aliquot_unlock(&lock);
	if (pool)
		return step;
	session_uncharge(slice, step);
	return 0;
}

/* Whether the pool may serve `bytes` from what it keeps. */
static bool has_unused(CUmemoryPool handle, uint64_t bytes)
{
	uint64_t reserved = attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	uint64_t used = attribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	return reserved >= bytes && reserved - bytes >= used;
}

/* One of the four calls that allocate in stream order. */
struct request {
	__typeof__(&cuMemAllocAsync) allocate; /* from the device's current pool, or NULL */
	__typeof__(&cuMemAllocFromPoolAsync) allocate_from;
	CUdeviceptr *pointer;
	size_t bytes;
	CUmemoryPool pool;
	CUstream stream;
};

static CUresult call(const struct request *request)
{
	if (request->allocate)
		return request->allocate(request->pointer, request->bytes, request->stream);
	return request->allocate_from(request->pointer, request->bytes, request->pool, request->stream);
}

static void undo(const struct request *request)
{
	bool per_thread = request->allocate == REAL(cuMemAllocAsync_ptsz) ||
	                  request->allocate_from == REAL(cuMemAllocFromPoolAsync_ptsz);
	(per_thread ? REAL(cuMemFreeAsync_ptsz) : REAL(cuMemFreeAsync))(*request->pointer,
	                                                                request->stream);
	*request->pointer = 0;
	atomic_store(&dirty, true);
}

static void count_in(CUmemoryPool handle, uint32_t slice, CUdeviceptr pointer, uint64_t bytes)
{
	bytes = ledger_round(bytes);
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	if (pool)
		pool->used += bytes;
	aliquot_unlock(&lock);
	memory_put_pooled(pointer, bytes, slice, handle);
}

static CUresult allocate(const struct request *request)
{
	uint32_t slice = request->pool ? slice_of(request->pool) : SESSION_NO_SLICE;
	if (!request->pointer || request->bytes == 0 || slice == SESSION_NO_SLICE)
		return call(request);
	uint64_t step = begin(request->pool, slice, request->bytes);
	if (step == 0 && !has_unused(request->pool, request->bytes)) {
		*request->pointer = 0;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = call(request);
	if (!settle(request->pool, step) && result == CUDA_SUCCESS) {
		undo(request);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result == CUDA_SUCCESS)
		count_in(request->pool, slice, *request->pointer, request->bytes);
	return result;
}

CUresult hook_alloc_from_pool(__typeof__(&cuMemAllocFromPoolAsync) real, CUdeviceptr *pointer,
                              size_t bytes, CUmemoryPool pool, CUstream stream)
{
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	return allocate(&(struct request){.allocate_from = real,
	                                  .pointer = pointer,
	                                  .bytes = bytes,
	                                  .pool = pool,
	                                  .stream = stream});
}

CUresult hook_alloc_async(__typeof__(&cuMemAllocAsync) real, CUdeviceptr *pointer, size_t bytes,
                          CUstream stream)
{
	CUdevice device;
	CUmemoryPool pool = NULL;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
		REAL(cuDeviceGetMemPool)(&pool, device);
	return allocate(&(struct request){.allocate = real,
	                                  .pointer = pointer,
	                                  .bytes = bytes,
	                                  .pool = pool,
	                                  .stream = stream});
}

CUresult hook_pool_create(__typeof__(&cuMemPoolCreate) real, CUmemoryPool *handle,
                          const CUmemPoolProps *properties)
{
	CUresult result = real(handle, properties);
	if (result == CUDA_SUCCESS && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		remember(*handle, session_slice_of_device(properties->location.id));
	return result;
}

CUresult hook_pool_destroy(__typeof__(&cuMemPoolDestroy) real, CUmemoryPool handle)
{
	uint64_t back = 0;
	CUresult result = real(handle);
	if (result != CUDA_SUCCESS)
		return result;
	aliquot_lock(&lock);
	struct pool *pool = handle ? find(handle) : NULL;
	uint32_t slice = pool ? pool->slice : SESSION_NO_SLICE;
	if (pool) {
		/* What it keeps unused is gone now; what is used goes as it is freed. */
		back = pool->used < pool->charged ? pool->charged - pool->used : 0;
		pool->charged -= back;
		pool->destroyed = true;
		if (pool->charged == 0)
			pool->handle = NULL;
	}
	aliquot_unlock(&lock);
	session_uncharge(slice, back);
	return result;
}

CUresult hook_pool_trim(__typeof__(&cuMemPoolTrimTo) real, CUmemoryPool handle, size_t keep)
{
	CUresult result = real(handle, keep);
	if (result == CUDA_SUCCESS && handle)
		settle(handle, 0);
	return result;
}

/* Of a destroyed pool no figure can be asked: its charge goes by what is freed. True: it was one. */
static bool count_out(CUmemoryPool handle, uint64_t bytes)
{
	uint64_t back = 0;
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	bool destroyed = pool && pool->destroyed;
	uint32_t slice = pool ? pool->slice : SESSION_NO_SLICE;
	if (pool)
		pool->used -= bytes < pool->used ? bytes : pool->used;
	if (destroyed) {
		back = bytes < pool->charged ? bytes : pool->charged;
		pool->charged -= back;
		if (pool->charged == 0)
			pool->handle = NULL;
	}
	aliquot_unlock(&lock);
	session_uncharge(slice, back);
	return destroyed;
}

void pool_freed(CUmemoryPool handle, uint64_t bytes)
{
	if (!count_out(handle, bytes))
		settle(handle, 0);
}

void pool_freed_async(CUmemoryPool handle, uint64_t bytes)
{
	if (!count_out(handle, bytes))
		atomic_store(&dirty, true);
}

static unsigned list(CUmemoryPool out[MAX_POOLS])
{
	unsigned count = 0;
	aliquot_lock(&lock);
	for (unsigned i = 0; i < MAX_POOLS; i++)
		if (pools[i].handle && !pools[i].destroyed)
			out[count++] = pools[i].handle;
	aliquot_unlock(&lock);
	return count;
}

void pools_settle(void)
{
	if (!atomic_load_explicit(&dirty, memory_order_relaxed) || !session_is_open() ||
	    !atomic_exchange(&dirty, false))
		return;
	CUmemoryPool handles[MAX_POOLS];
	for (unsigned i = list(handles); i-- > 0;)
		settle(handles[i], 0);
}

static uint64_t charged_in_all(void)
{
	uint64_t sum = 0;
	aliquot_lock(&lock);
	for (unsigned i = 0; i < MAX_POOLS; i++)
		sum += pools[i].charged;
	aliquot_unlock(&lock);
	return sum;
}

bool pools_trim(void)
{
	CUmemoryPool handles[MAX_POOLS];
	uint64_t before = charged_in_all();
	for (unsigned i = list(handles); i-- > 0;) {
		REAL(cuMemPoolTrimTo)(handles[i], 0);
		settle(handles[i], 0);
	}
	return charged_in_all() < before;
}
