/* Attributes of pointers and address ranges, memory advice and prefetches. */
#include "cuda/stream/stream.h"

#include <string.h>
#include <sys/mman.h>

static CUdevice device_of(const struct sim_range *range)
{
	for (int i = 0; i < sim.count; i++)
		if (sim.devices[i].gpu == range->gpu)
			return i;
	return 0;
}

static bool on_host(const struct sim_range *range)
{
	return range->memory == SIM_HOST || range->memory == SIM_REGISTERED;
}

/* Memory that cuMemAlloc gave. */
static bool plain(const struct sim_range *range)
{
	return range->memory == SIM_DEVICE || range->memory == SIM_SMALL;
}

/* The pages behind the range: several small allocations share one. */
static uint64_t mapping_base(const struct sim_range *range)
{
	return range->memory == SIM_SMALL ? range->base / SIM_PAGE * SIM_PAGE : range->base;
}

static uint64_t mapping_size(const struct sim_range *range)
{
	return plain(range) ? pages_round(range->size, SIM_PAGE) : range->size;
}

static void put(void *out, const void *value, size_t size)
{
	memcpy(out, value, size);
}

static CUresult attribute(void *out, CUpointer_attribute which, uint64_t address,
                          const struct sim_range *r)
{
	uint32_t number = 0;
	uint64_t wide = 0;
	switch ((int)which) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		put(out, &r->context, sizeof(void *));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		number = on_host(r) || (r->memory == SIM_MAPPED && physical_is_host(r->owner))
		             ? CU_MEMORYTYPE_HOST
		             : CU_MEMORYTYPE_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		put(out, &address, 8);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!on_host(r) && r->memory != SIM_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		put(out, &address, 8);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		number = plain(r) && !r->no_sync;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		put(out, &r->id, 8);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(bool *)out = r->memory == SIM_MANAGED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		number = (uint32_t)device_of(r);
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(bool *)out = plain(r);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		put(out, &r->base, 8);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		wide = mapping_base(r);
		put(out, &wide, 8);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		put(out, &r->size, 8);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		wide = mapping_size(r);
		put(out, &wide, 8);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(bool *)out = true;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		wide = r->memory == SIM_MAPPED ? physical_handle_types(r->owner) : 0;
		put(out, &wide, 8);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*(bool *)out = false;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		number = r->memory == SIM_MAPPED && !(r->access & PROT_WRITE)
		             ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
		             : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		wide = r->memory == SIM_POOLED ? (uint64_t)r->owner : 0;
		put(out, &wide, 8);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		wide = r->memory == SIM_SMALL ? small_block_id(r) : r->id;
		put(out, &wide, 8);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	put(out, &number, sizeof(number));
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr address)
{
	SIM_ENTER();
	const struct sim_range *range = range_find(address);
	return out && range ? attribute(out, which, address, range) : CUDA_ERROR_INVALID_VALUE;
}

/* The size of an attribute: for an unknown address the driver sets it to 0. */
static size_t width(CUpointer_attribute which)
{
	switch ((int)which) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return 4;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		return 1;
	default:
		return 8;
	}
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *which, void **out,
                                CUdeviceptr address)
{
	SIM_ENTER();
	const struct sim_range *range = range_find(address);
	int no_device = -2;
	if (!count || !which || !out)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++) {
		if (range && !attribute(out[i], which[i], address, range))
			continue;
		if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
			put(out[i], &no_device, sizeof(no_device));
		else
			memset(out[i], 0, width(which[i]));
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute which, CUdeviceptr address)
{
	SIM_ENTER();
	struct sim_range *range = range_find(address);
	if (!value || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !range)
		return CUDA_ERROR_INVALID_VALUE;
	if (range->memory == SIM_MAPPED)
		return CUDA_ERROR_NOT_SUPPORTED;
	range->no_sync = !*(const unsigned int *)value;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	SIM_ENTER();
	const struct sim_range *range = range_find(address);
	if (!range || range->memory == SIM_REGISTERED)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = range->base;
	if (size)
		*size = range->size;
	return CUDA_SUCCESS;
}

static CUresult managed(CUdeviceptr address, size_t size)
{
	const struct sim_range *range = range_find(address);
	bool inside = range && size && size <= range->size &&
	              address - range->base <= range->size - size;
	return inside && range->memory == SIM_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise advice,
                        CUmemLocation location)
{
	SIM_ENTER();
	(void)advice;
	(void)location;
	return managed(address, size);
}

CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device)
{
	SIM_ENTER();
	(void)advice;
	(void)device;
	return managed(address, size);
}

static CUresult prefetch(CUdeviceptr address, size_t size, CUstream in)
{
	SIM_ENTER();
	struct sim_stream *stream;
	SIM_TRY(stream_get(in, &stream));
	return managed(address, size);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location,
                               unsigned int flags, CUstream in)
{
	(void)location;
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(address, size, in);
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream in)
{
	(void)device;
	return prefetch(address, size, in);
}
