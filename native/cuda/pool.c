#include "pool.h"

#include "aliquot/ledger.h"
#include "aliquot/lock.h"
#include "memory.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

#define GROWTH (UINT64_C(32) << 20)

struct pool {
	CUmemoryPool handle; /* NULL: an empty place */
	uint32_t slice;      /* SESSION_NO_SLICE: none of ours, not counted */
	bool destroyed;      /* by the program; lives on in the driver until its memory is freed */
	uint64_t charged;    /* in the ledger for it */
	uint64_t in_flight;  /* of that, for allocations whose outcome is not known yet */
	uint64_t used;       /* by allocations that are not freed, in the ledger's units */
	uint64_t changes;    /* of the two above: tells a figure that was asked for before */
};

static struct aliquot_lock lock;
static struct pool *pools;
static unsigned places;
static _Atomic bool dirty;

/* Precondition of what returns a pool: the lock is held, and the pool is used under it alone. */
static struct pool *find(CUmemoryPool handle)
{
	for (unsigned i = 0; i < places; i++)
		if (pools[i].handle == handle)
			return &pools[i];
	return NULL;
}

static bool is_counted(const struct pool *pool)
{
	return pool && !pool->destroyed && pool->slice != SESSION_NO_SLICE;
}

static struct pool *empty_place(void)
{
	struct pool *place = find(NULL);
	if (place)
		return place;
	struct pool *more = realloc(pools, (places + 64) * sizeof(*pools));
	if (!more)
		return NULL;
	memset(more + places, 0, 64 * sizeof(*pools));
	pools = more;
	places += 64;
	return find(NULL);
}

/* No driver's handle is that small. */
CUmemoryPool pool_of_graphs(CUdevice device)
{
	return (CUmemoryPool)((uintptr_t)device + 1);
}

static bool is_of_graphs(CUmemoryPool pool, CUdevice *device)
{
	*device = (CUdevice)((uintptr_t)pool - 1);
	return (uintptr_t)pool < 4096;
}

static uint64_t reserved_by(CUmemoryPool pool)
{
	cuuint64_t value = 0;
	CUdevice device;
	if (is_of_graphs(pool, &device))
		REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value);
	else
		REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value);
	return value;
}

void pool_remember(CUmemoryPool handle, uint32_t slice)
{
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	if (!pool && (pool = empty_place()))
		*pool = (struct pool){.handle = handle, .slice = slice};
	aliquot_unlock(&lock);
}

/* A pool that the program neither made nor imported is the default one of some device. */
static uint32_t slice_of_default(CUmemoryPool handle)
{
	int count = 0;
	REAL(cuDeviceGetCount)(&count);
	for (int device = 0; device < count; device++) {
		CUmemoryPool pool = NULL;
		if (REAL(cuDeviceGetDefaultMemPool)(&pool, device) == CUDA_SUCCESS && pool == handle)
			return session_slice_of_device(device);
	}
	return SESSION_NO_SLICE;
}

uint32_t pool_slice(CUmemoryPool handle)
{
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	uint32_t slice = pool ? pool->slice : SESSION_NO_SLICE;
	aliquot_unlock(&lock);
	if (pool)
		return slice;
	slice = slice_of_default(handle);
	pool_remember(handle, slice);
	return slice;
}

/* The pool's reserve and the change it belongs to; asked again while another thread settles. Of one
 * that we do not know, or no more, nothing is asked. */
static uint64_t ask_reserved(CUmemoryPool handle, uint64_t *change)
{
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	bool known = is_counted(pool);
	*change = pool ? pool->changes : 0;
	aliquot_unlock(&lock);
	return known ? reserved_by(handle) : 0;
}

/* Bring the charge to what the pool has; `landed` in-flight bytes are known now.
 * False: the pool has more than was charged, and the slice has no room for it. */
bool pool_end(CUmemoryPool handle, uint64_t landed)
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
	if (is_counted(pool)) {
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

/* Whether the pool may serve `bytes` from what it keeps. The driver's own figure for what is used is
 * no help: it leaves out what cuMemFree gave back (seen on a card). */
static bool has_unused(CUmemoryPool handle, uint64_t bytes)
{
	CUdevice device;
	if (is_of_graphs(handle, &device))
		return false; /* a launch cannot be undone if it does not fit after all */
	uint64_t reserved = reserved_by(handle);
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	uint64_t used = pool ? pool->used : UINT64_MAX;
	aliquot_unlock(&lock);
	return reserved >= bytes && reserved - bytes >= used;
}

bool pool_begin(CUmemoryPool handle, uint32_t slice, uint64_t bytes, uint64_t *step)
{
	uint64_t wanted = (bytes + GROWTH - 1) / GROWTH * GROWTH;
	*step = 0;
	pool_remember(handle, slice);
	if (wanted < bytes)
		return false;
	/* What the pool keeps comes before having all pools give up what they keep. */
	if (!session_reserve(slice, wanted)) {
		if (has_unused(handle, bytes))
			return true;
		if (!session_charge(slice, wanted))
			return false;
	}
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	if (pool) {
		pool->charged += wanted;
		pool->in_flight += wanted;
		pool->changes++;
		*step = wanted;
	}
	aliquot_unlock(&lock);
	if (!pool)
		session_uncharge(slice, wanted);
	return pool != NULL;
}

void pool_count_in(CUmemoryPool handle, uint32_t slice, CUdeviceptr pointer, uint64_t bytes)
{
	bytes = ledger_round(bytes);
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	if (pool)
		pool->used += bytes;
	aliquot_unlock(&lock);
	memory_put_pooled(pointer, bytes, slice, handle);
}

void pool_destroyed(CUmemoryPool handle)
{
	uint64_t back = 0;
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
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
		pool_end(handle, 0);
}

void pool_freed_async(CUmemoryPool handle, uint64_t bytes)
{
	if (!count_out(handle, bytes))
		atomic_store(&dirty, true);
}

/* The next pool that can be asked, from place *at on; NULL: no more. */
static CUmemoryPool next(unsigned *at)
{
	CUmemoryPool handle = NULL;
	aliquot_lock(&lock);
	for (; *at < places && !handle; ++*at)
		if (is_counted(&pools[*at]))
			handle = pools[*at].handle;
	aliquot_unlock(&lock);
	return handle;
}

void pools_settle(void)
{
	if (!atomic_load_explicit(&dirty, memory_order_relaxed) || !session_is_open() ||
	    !atomic_exchange(&dirty, false))
		return;
	unsigned at = 0;
	for (CUmemoryPool handle; (handle = next(&at));)
		pool_end(handle, 0);
}

static uint64_t charged_in_all(void)
{
	uint64_t sum = 0;
	aliquot_lock(&lock);
	for (unsigned i = 0; i < places; i++)
		sum += pools[i].charged;
	aliquot_unlock(&lock);
	return sum;
}

/* Not what graphs keep: one that was launched can be launched again. */
bool pools_trim(void)
{
	uint64_t before = charged_in_all();
	unsigned at = 0;
	CUdevice device;
	for (CUmemoryPool handle; (handle = next(&at));) {
		if (is_of_graphs(handle, &device))
			continue;
		REAL(cuMemPoolTrimTo)(handle, 0);
		pool_end(handle, 0);
	}
	return charged_in_all() < before;
}
