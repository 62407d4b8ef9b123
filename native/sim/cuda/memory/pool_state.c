/* Entry points of memory pools: creation, choice, attributes, access. */
#include "cuda/memory/pool.h"

#include <string.h>
#include <sys/mman.h>

static CUresult get(CUmemoryPool handle, struct sim_pool **pool)
{
	*pool = (struct sim_pool *)handle;
	return handle_is(handle, SIM_POOL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
	SIM_ENTER();
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_DEVICE_CHECK(device);
	*out = (CUmemoryPool)pool_default(device);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
	SIM_ENTER();
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_DEVICE_CHECK(device);
	*out = (CUmemoryPool)pool_current(device);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
	SIM_ENTER();
	struct sim_pool *pool;
	SIM_DEVICE_CHECK(device);
	SIM_TRY(get(handle, &pool));
	if (pool->device != device)
		return CUDA_ERROR_INVALID_VALUE;
	sim.devices[device].pool = pool;
	return CUDA_SUCCESS;
}

static CUresult check_location(const CUmemLocation *location, CUmemAllocationType type)
{
	if (!location || type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return location->id < 0 || location->id >= sim.count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location,
                                CUmemAllocationType type)
{
	SIM_TRY(check_location(location, type));
	return cuDeviceGetDefaultMemPool(out, location->id);
}

CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type)
{
	SIM_TRY(check_location(location, type));
	return cuDeviceGetMemPool(out, location->id);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	SIM_TRY(check_location(location, type));
	return cuDeviceSetMemPool(location->id, pool);
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *p)
{
	SIM_ENTER();
	if (!out || !p || p->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->location.type != CU_MEM_LOCATION_TYPE_DEVICE || p->handleTypes)
		return CUDA_ERROR_NOT_SUPPORTED;
	SIM_DEVICE_CHECK(p->location.id);
	*out = (CUmemoryPool)pool_make(p->location.id, p);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	SIM_ENTER();
	struct sim_pool *pool;
	SIM_TRY(get(handle, &pool));
	struct sim_device *device = &sim.devices[pool->device];
	if (pool->is_default)
		return CUDA_ERROR_INVALID_VALUE;
	if (device->pool == pool)
		device->pool = device->default_pool;
	pool_destroy(pool);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	SIM_ENTER();
	struct sim_pool *pool;
	SIM_TRY(get(handle, &pool));
	pool_shrink(pool, keep);
	return CUDA_SUCCESS;
}

/* The pool's field for a 64-bit attribute; NULL: the attribute is a flag or unknown. */
static uint64_t *number(struct sim_pool *pool, CUmemPool_attribute attribute)
{
	switch ((int)attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &pool->threshold;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return &pool->reserved;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return &pool->reserved_high;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &pool->used;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &pool->used_high;
	default:
		return NULL;
	}
}

static bool is_flag(CUmemPool_attribute attribute)
{
	return (int)attribute >= 1 && (int)attribute <= 3;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	SIM_ENTER();
	struct sim_pool *pool;
	SIM_TRY(get(handle, &pool));
	if (!value || (!is_flag(attribute) && !number(pool, attribute)))
		return CUDA_ERROR_INVALID_VALUE;
	if (is_flag(attribute))
		memcpy(value, &pool->reuse[attribute - 1], sizeof(int));
	else
		memcpy(value, number(pool, attribute), sizeof(uint64_t));
	return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	SIM_ENTER();
	struct sim_pool *pool;
	uint64_t given = 0;
	SIM_TRY(get(handle, &pool));
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (is_flag(attribute)) {
		memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
		return CUDA_SUCCESS;
	}
	memcpy(&given, value, sizeof(given));
	switch ((int)attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold = given;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		pool->reserved_high = pool->reserved;
		return given ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		pool->used_high = pool->used;
		return given ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
	SIM_ENTER();
	struct sim_pool *pool;
	SIM_TRY(get(handle, &pool));
	if (!access && count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		SIM_DEVICE_CHECK(access[i].location.id);
		if (access[i].location.id == pool->device &&
		    access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_DEVICE;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
	SIM_ENTER();
	struct sim_pool *pool;
	SIM_TRY(get(handle, &pool));
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_DEVICE_CHECK(location->id);
	bool own = location->id == pool->device;
	*flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return CUDA_SUCCESS;
}

/* A file that stands for the pool: pools cannot be imported here. */
CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle,
                                          CUmemAllocationHandleType type, unsigned long long flags)
{
	SIM_ENTER();
	struct sim_pool *pool;
	SIM_TRY(get(handle, &pool));
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)out = memfd_create("aliquot-simulated-pool", MFD_CLOEXEC);
	return *(int *)out < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
