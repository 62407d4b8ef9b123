/* Pinned host memory: allocated by the driver, or by the program and registered. */
#include "cuda/graph/capture.h"
#include "cuda/stream/stream.h"

#include <sys/mman.h>
#include <unistd.h>

static void release(const struct sim_range *range)
{
	pages_unmap(range->base, pages_round(range->size, 4096));
}

static CUresult allocate(void **address, size_t size, unsigned int flags)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	*address = NULL;
	if (!size || flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	uint64_t whole = pages_round(size, 4096);
	if (whole > 1ull << 46)
		return CUDA_ERROR_OUT_OF_MEMORY;
	void *map = mmap(NULL, whole, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct sim_range range = {.base = (uint64_t)map,
	                          .size = size,
	                          .memory = SIM_HOST,
	                          .context = context,
	                          .gpu = context->gpu,
	                          .flags = flags,
	                          .release = release};
	range_add(&range);
	*address = map;
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **address, size_t size, unsigned int flags)
{
	return allocate(address, size, flags);
}

CUresult cuMemAllocHost_v2(void **address, size_t size)
{
	return allocate(address, size, 0);
}

CUresult cuMemAllocHost(void **address, unsigned int size)
{
	return allocate(address, size, 0);
}

CUresult cuMemFreeHost(void *address)
{
	SIM_ENTER();
	struct sim_range *range = range_exact((uint64_t)address);
	if (!range || range->memory != SIM_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	SIM_TRY(context_wait(range->context));
	range = range_wait((uint64_t)address);
	if (!range)
		return CUDA_ERROR_INVALID_VALUE;
	range_free(range);
	return CUDA_SUCCESS;
}

/* Whether every page of [base, base + size) is mapped in this process. */
static bool is_mapped(uint64_t base, uint64_t size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned char there[64];
	for (uint64_t at = base / page * page; at < base + size; at += sizeof(there) * page) {
		uint64_t left = base + size - at;
		uint64_t length = left < sizeof(there) * page ? left : sizeof(there) * page;
		if (mincore((void *)at, length, there))
			return false;
	}
	return true;
}

CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned int flags)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	uint64_t base = (uint64_t)address;
	if (!address || !size || flags & ~15u || base + size < base)
		return CUDA_ERROR_INVALID_VALUE;
	const struct sim_range *near = range_from(base);
	if (near && near->base < base + size)
		return near->memory == SIM_REGISTERED || near->memory == SIM_HOST
				   ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
				   : CUDA_ERROR_INVALID_VALUE;
	if (!is_mapped(base, size))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	struct sim_range range = {.base = base,
	                          .size = size,
	                          .memory = SIM_REGISTERED,
	                          .context = context,
	                          .gpu = context->gpu,
	                          .flags = flags};
	return range_add(&range) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemHostRegister(void *address, size_t size, unsigned int flags)
{
	return cuMemHostRegister_v2(address, size, flags);
}

CUresult cuMemHostUnregister(void *address)
{
	SIM_ENTER();
	struct sim_range *range = range_exact((uint64_t)address);
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	if (!range || range->memory != SIM_REGISTERED)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	SIM_TRY(context_wait(range->context));
	range = range_wait((uint64_t)address);
	if (!range)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	range_free(range);
	return CUDA_SUCCESS;
}

static const struct sim_range *pinned(void *address)
{
	const struct sim_range *range = range_find((uint64_t)address);
	return range && (range->memory == SIM_HOST || range->memory == SIM_REGISTERED) ? range : NULL;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned int flags)
{
	SIM_ENTER();
	if (!device || flags || !pinned(address))
		return CUDA_ERROR_INVALID_VALUE;
	*device = (CUdeviceptr)address;
	return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *address)
{
	SIM_ENTER();
	if (!flags || !pinned(address))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = pinned(address)->flags | CU_MEMHOSTALLOC_DEVICEMAP;
	return CUDA_SUCCESS;
}
