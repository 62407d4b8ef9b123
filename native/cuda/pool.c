#include "pool.h"

#include "aliquot/ledger.h"
#include "aliquot/lock.h"
#include "exported.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>

#define GROWTH (UINT64_C(32) << 20)

struct pool {
	CUmemoryPool handle; /* NULL: an empty place */
	uint32_t slice;      /* SESSION_NO_SLICE: its memory is not charged here */
	bool destroyed;      /* by the program; in the driver it lives until its memory is freed */
	bool exported;       /* other processes may keep what it has reserved */
	uint64_t most;       /* reserved at once since it was exported */
	uint64_t charged;    /* in the ledger, for this pool */
	uint64_t in_flight;  /* the part of it for allocations that the driver has not answered yet */
	uint64_t used;       /* by allocations that are not freed, in the ledger's units */
	uint64_t changes;    /* of `charged` and `in_flight`: shows that a figure is outdated */
};

static struct aliquot_lock lock;
static struct pool *pools;
static unsigned places;
static _Atomic bool dirty;

/* Precondition of everything that returns a pool: the caller has the lock while it uses the pool.
 */
static struct pool *find(CUmemoryPool handle)
{
	for (unsigned i = 0; i < places; i++)
		if (pools[i].handle == handle)
			return &pools[i];
	return NULL;
}

static bool is_charged(const struct pool *pool)
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

/* No handle of the driver's is that small. */
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

/* A pool that the program neither created nor imported is some device's default pool. */
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

/* What the pool has reserved, and the change that this figure belongs to. A pool that is not
 * charged, or is destroyed, is not asked. */
static uint64_t ask_reserved(CUmemoryPool handle, uint64_t *change)
{
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	bool known = is_charged(pool);
	*change = pool ? pool->changes : 0;
	aliquot_unlock(&lock);
	return known ? reserved_by(handle) : 0;
}

bool pool_settle(CUmemoryPool handle, uint64_t step)
{
	uint64_t change, reserved = ask_reserved(handle, &change), back = 0, more = 0;
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	while (pool && pool->changes != change) { /* another thread settled it: ask again */
		aliquot_unlock(&lock);
		reserved = ask_reserved(handle, &change);
		aliquot_lock(&lock);
		pool = find(handle);
	}
	uint32_t slice = pool ? pool->slice : SESSION_NO_SLICE;
	if (is_charged(pool)) {
		pool->changes++;
		pool->in_flight -= step;
		if (pool->exported && reserved > pool->most)
			pool->most = reserved;
		uint64_t target = (pool->exported ? pool->most : reserved) + pool->in_flight;
		if (target < pool->charged)
			back = pool->charged - target;
		else if (reserved > pool->charged)
			more = reserved - pool->charged;
		pool->charged += more - back;
	}
	aliquot_unlock(&lock);
	session_release(slice, back);
	if (more == 0 || session_reserve(slice, more))
		return true;
	aliquot_lock(&lock);
	if ((pool = find(handle)))
		pool->charged -= more < pool->charged ? more : pool->charged;
	aliquot_unlock(&lock);
	return false;
}

void pool_exported(CUmemoryPool handle)
{
	pool_slice(handle);
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	if (pool)
		pool->exported = true;
	aliquot_unlock(&lock);
	pool_settle(handle, 0);
}

/* The next charged pool, from place *at on; NULL: there are no more. */
static CUmemoryPool next_charged(unsigned *at)
{
	CUmemoryPool handle = NULL;
	aliquot_lock(&lock);
	for (; *at < places && !handle; ++*at)
		if (is_charged(&pools[*at]))
			handle = pools[*at].handle;
	aliquot_unlock(&lock);
	return handle;
}

static uint64_t sum_of_charges(void)
{
	uint64_t sum = 0;
	aliquot_lock(&lock);
	for (unsigned i = 0; i < places; i++)
		sum += pools[i].charged;
	aliquot_unlock(&lock);
	return sum;
}

/* Have every pool give up what it keeps unused; true: that freed something. But what graphs keep
 * they need: a graph that was launched may be launched again. */
static bool trim_pools(void)
{
	uint64_t before = sum_of_charges();
	unsigned at = 0;
	CUdevice device;
	for (CUmemoryPool handle; (handle = next_charged(&at));) {
		if (is_of_graphs(handle, &device))
			continue;
		REAL(cuMemPoolTrimTo)(handle, 0);
		pool_settle(handle, 0);
	}
	return sum_of_charges() < before;
}

bool pools_charge(uint32_t slice, uint64_t bytes)
{
	if (session_reserve(slice, bytes))
		return true;
	if (bytes > atomic_load(&session_limits()->slices[slice].limit_bytes))
		return false; /* whatever pools gave up, it would not fit */
	return (exported_settle() && session_reserve(slice, bytes)) ||
	       (trim_pools() && session_reserve(slice, bytes));
}

/* Whether the pool may have `bytes` in what it keeps unused. The driver's own figure for what is
 * used is no help: it leaves out what cuMemFree gave back (seen on a GPU). */
static bool has_unused(CUmemoryPool handle, uint64_t bytes)
{
	CUdevice device;
	if (is_of_graphs(handle, &device))
		return false; /* a launch that does not fit after all cannot be undone */
	uint64_t reserved = reserved_by(handle);
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	uint64_t used = pool ? pool->used : UINT64_MAX;
	aliquot_unlock(&lock);
	return reserved >= bytes && reserved - bytes >= used;
}

/* Whether the pool is exported, and charged for so much that it can grow by `bytes`. */
static bool has_charge(CUmemoryPool handle, uint64_t bytes)
{
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	bool exported = is_charged(pool) && pool->exported;
	uint64_t charged = exported ? pool->charged - pool->in_flight : 0;
	aliquot_unlock(&lock);
	return exported && reserved_by(handle) + bytes <= charged;
}

bool pool_charge_step(CUmemoryPool handle, uint32_t slice, uint64_t bytes, uint64_t *step)
{
	uint64_t wanted = (bytes + GROWTH - 1) / GROWTH * GROWTH;
	*step = 0;
	pool_remember(handle, slice);
	if (wanted < bytes)
		return false;
	if (has_charge(handle, wanted))
		return true;
	/* The pool may use what it keeps, before all pools give up what they keep. */
	if (!session_reserve(slice, wanted)) {
		if (has_unused(handle, bytes))
			return true;
		if (!pools_charge(slice, wanted))
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
		session_release(slice, wanted);
	return pool != NULL;
}

void pool_allocated(CUmemoryPool handle, uint64_t bytes)
{
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	if (pool)
		pool->used += ledger_round(bytes);
	aliquot_unlock(&lock);
}

void pool_destroyed(CUmemoryPool handle)
{
	uint64_t back = 0;
	aliquot_lock(&lock);
	struct pool *pool = find(handle);
	uint32_t slice = pool ? pool->slice : SESSION_NO_SLICE;
	if (pool) {
		/* What it keeps unused is freed now; the rest as the program frees it. */
		back = pool->used < pool->charged ? pool->charged - pool->used : 0;
		pool->charged -= back;
		pool->destroyed = true;
		if (pool->charged == 0)
			pool->handle = NULL;
	}
	aliquot_unlock(&lock);
	session_release(slice, back);
}

/* The driver tells nothing about a destroyed pool: its charge shrinks by what is freed. True: it is
 * one.
 */
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
	session_release(slice, back);
	return destroyed;
}

void pool_freed(CUmemoryPool handle, uint64_t bytes)
{
	if (!count_out(handle, bytes))
		pool_settle(handle, 0);
}

void pool_freed_async(CUmemoryPool handle, uint64_t bytes)
{
	if (!count_out(handle, bytes))
		atomic_store(&dirty, true);
}

void pools_settle(void)
{
	exported_settle_sometimes();
	if (!atomic_load_explicit(&dirty, memory_order_relaxed) || !session_is_open() ||
	    !atomic_exchange(&dirty, false))
		return;
	unsigned at = 0;
	for (CUmemoryPool handle; (handle = next_charged(&at));)
		pool_settle(handle, 0);
}
