/* Virtual memory management: a program reserves addresses, creates physical memory, and maps it there.
 *
 * Physical memory is a piece of one file in memory (memfd) per process. Memory that can be exported to
 * other processes has its own file (vmm_export.c). So two mappings of one piece show the same bytes. The
 * driver gives a piece back when its last handle and its last mapping are gone.
 */
#include "cuda/memory/vmm.h"

#include "cuda/stream/stream.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILE_SIZE (1ull << 46)

/* Reserved addresses. */
struct reservation {
	uint64_t base, size;
	struct reservation *next;
};

static int shared_fd = -1;
static struct sim_physical *pieces; /* of the shared file, by offset */
static struct reservation *reservations;

static bool valid_location(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id >= 0 &&
	       location->id < sim.count;
}

static bool is_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

static CUresult check(const CUmemAllocationProp *p)
{
	if (!p || p->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (is_host(&p->location) && p->requestedHandleTypes)
		return CUDA_ERROR_NOT_SUPPORTED; /* a real driver exports it: nobody needs that here */
	if (is_host(&p->location))           /* the host has one node */
		return p->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (p->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!valid_location(&p->location))
		return CUDA_ERROR_INVALID_DEVICE;
	if (p->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *p,
                                       CUmemAllocationGranularity_flags option)
{
	SIM_ENTER();
	if (!granularity || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(check(p));
	*granularity = SIM_PAGE;
	return CUDA_SUCCESS;
}

/* Puts the piece into the first gap of the shared file. */
static bool place(struct sim_physical *piece)
{
	if (shared_fd < 0) {
		shared_fd = memfd_create("aliquot-simulated", MFD_CLOEXEC);
		if (shared_fd < 0 || ftruncate(shared_fd, (off_t)FILE_SIZE))
			return false;
	}
	struct sim_physical **at = &pieces;
	for (; *at && (*at)->offset - piece->offset < piece->size; at = &(*at)->next)
		piece->offset = (*at)->offset + (*at)->size;
	piece->fd = shared_fd;
	piece->next = *at;
	*at = piece;
	return true;
}

static bool own_file(struct sim_physical *piece)
{
	piece->own_file = true;
	piece->fd = memfd_create("aliquot-simulated-gpu", MFD_CLOEXEC);
	return piece->fd >= 0 && !ftruncate(piece->fd, (off_t)(piece->size + PHYSICAL_LABEL));
}

/* Memory of the host takes none of a GPU's. */
static CUresult take(const struct sim_physical *piece)
{
	return is_host(&piece->properties.location) ? CUDA_SUCCESS
	                                            : pages_take(piece->gpu, piece->size);
}

static void give(const struct sim_physical *piece)
{
	if (is_host(&piece->properties.location))
		return;
	if (piece->share)
		machine_leave(&sim.machine, piece->share);
	else
		machine_give(&sim.machine, piece->gpu, piece->size);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *p, unsigned long long flags)
{
	SIM_ENTER();
	if (!handle || flags || !size || size % SIM_PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(check(p));
	struct sim_physical made = {.size = size,
	                            .fd = -1,
	                            .handles = 1,
	                            .properties = *p,
	                            .gpu = sim.devices[is_host(&p->location) ? 0 : p->location.id].gpu};
	if (size > sim.machine.shape.memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	SIM_TRY(take(&made));
	struct sim_physical *piece = malloc(sizeof(*piece));
	if (piece) {
		*piece = made;
		if (p->requestedHandleTypes ? own_file(piece) : place(piece)) {
			handle_add(piece, SIM_PHYSICAL);
			*handle = (CUmemGenericAllocationHandle)piece;
			return CUDA_SUCCESS;
		}
	}
	give(&made);
	free(piece);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static void release(struct sim_physical *piece)
{
	if (piece->handles || piece->mappings)
		return;
	if (piece->own_file) {
		close(piece->fd);
	} else {
		fallocate(piece->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)piece->offset,
		          (off_t)piece->size);
		struct sim_physical **at = &pieces;
		while (*at != piece)
			at = &(*at)->next;
		*at = piece->next;
	}
	if (piece->imported)
		sim_self()->imported--;
	give(piece);
	free(piece);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	SIM_ENTER();
	struct sim_physical *piece = (struct sim_physical *)handle;
	if (!handle_is(piece, SIM_PHYSICAL))
		return CUDA_ERROR_INVALID_VALUE;
	if (--piece->handles == 0)
		handle_remove(piece);
	release(piece);
	return CUDA_SUCCESS;
}

struct sim_physical *physical_hold(CUmemGenericAllocationHandle handle)
{
	struct sim_physical *piece = (struct sim_physical *)handle;
	if (!handle_is(piece, SIM_PHYSICAL))
		return NULL;
	piece->mappings++;
	return piece;
}

void physical_drop(struct sim_physical *piece)
{
	piece->mappings--;
	release(piece);
}

bool physical_is_host(const struct sim_physical *piece)
{
	return is_host(&piece->properties.location);
}

uint64_t physical_handle_types(const struct sim_physical *piece)
{
	return piece->properties.requestedHandleTypes;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
	SIM_ENTER();
	(void)wish; /* a hint only */
	if (!address || !size || size % SIM_PAGE || flags || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t unit = alignment > SIM_PAGE ? alignment : SIM_PAGE;
	if (size > 1ull << 47 || unit > 1ull << 46)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct reservation *r = malloc(sizeof(*r));
	char *map = mmap(NULL, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
	                 0);
	if (map == MAP_FAILED || !r) {
		free(r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	char *base = (char *)pages_round((uint64_t)map, unit);
	if (base > map)
		munmap(map, (size_t)(base - map));
	if (base < map + unit)
		munmap(base + size, (size_t)(map + unit - base));
	*r = (struct reservation){(uint64_t)base, size, reservations};
	reservations = r;
	*address = r->base;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	SIM_ENTER();
	struct reservation **at = &reservations;
	while (*at && ((*at)->base != address || (*at)->size != size))
		at = &(*at)->next;
	const struct sim_range *mapped = range_from(address);
	if (!*at || (mapped && mapped->base < address + size))
		return CUDA_ERROR_INVALID_VALUE;
	struct reservation *r = *at;
	*at = r->next;
	munmap((void *)r->base, r->size);
	free(r);
	return CUDA_SUCCESS;
}

static bool reserved(uint64_t address, uint64_t size)
{
	for (const struct reservation *r = reservations; r; r = r->next)
		if (address >= r->base && size <= r->size && address - r->base <= r->size - size)
			return true;
	return false;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	SIM_ENTER();
	struct sim_physical *piece = (struct sim_physical *)handle;
	if (!handle_is(piece, SIM_PHYSICAL) || !size || size % SIM_PAGE || flags ||
	    !reserved(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	if (offset)
		return CUDA_ERROR_NOT_SUPPORTED;
	const struct sim_range *near = range_from(address);
	if (size > piece->size || (near && near->base < address + size))
		return CUDA_ERROR_INVALID_VALUE;
	void *map = mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
	                 piece->fd, (off_t)piece->offset);
	if (map == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	madvise(map, size, MADV_DONTFORK);
	struct sim_range range = {.base = address,
	                          .size = size,
	                          .memory = SIM_MAPPED,
	                          .gpu = piece->gpu,
	                          .owner = piece};
	range_add(&range);
	piece->mappings++;
	return CUDA_SUCCESS;
}

/* Whether [address, address + size) consists of whole mappings. */
static bool whole_mappings(uint64_t address, uint64_t size)
{
	uint64_t at = address;
	while (at < address + size) {
		const struct sim_range *range = range_exact(at);
		if (!range || range->memory != SIM_MAPPED)
			return false;
		at += range->size;
	}
	return size && at == address + size;
}

/* Whether no mapping crosses either end of [address, address + size). It may contain none. */
static bool clean_ends(uint64_t address, uint64_t size)
{
	const struct sim_range *first = range_find(address), *last = range_find(address + size - 1);
	return (!first || first->base == address) &&
	       (!last || last->base + last->size == address + size);
}

static void unmap(struct sim_range *range)
{
	struct sim_physical *piece = range->owner;
	mmap((void *)range->base, range->size, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	range_remove(range);
	piece->mappings--;
	release(piece);
}

/* It does not wait for the GPU (seen on an H200): operations that still use the memory fault. */
CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	SIM_ENTER();
	if (!size || size % SIM_PAGE || !reserved(address, size) || !clean_ends(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	memory_lose(address, size);
	if (!reserved(address, size) || !clean_ends(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	for (struct sim_range *range; (range = range_from(address)) && range->base < address + size;)
		unmap(range);
	return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                        size_t count)
{
	SIM_ENTER();
	if (!access || !count || !whole_mappings(address, size))
		return CUDA_ERROR_INVALID_VALUE;
	int wanted = PROT_NONE;
	for (size_t i = 0; i < count; i++) {
		if (!valid_location(&access[i].location))
			return CUDA_ERROR_INVALID_DEVICE;
		if (access[i].flags & CU_MEM_ACCESS_FLAGS_PROT_READ)
			wanted |= PROT_READ;
		if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			wanted |= PROT_WRITE;
	}
	for (uint64_t at = address; at < address + size;) {
		struct sim_range *range = range_exact(at);
		mprotect((void *)at, range->size, wanted);
		range->access = (uint32_t)wanted;
		at += range->size;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                        CUdeviceptr address)
{
	SIM_ENTER();
	const struct sim_range *range = range_find(address);
	if (!flags || !location || !range)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = range->memory != SIM_MAPPED  ? 0
	         : range->access & PROT_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	         : range->access & PROT_READ  ? CU_MEM_ACCESS_FLAGS_PROT_READ
	                                      : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	SIM_ENTER();
	const struct sim_range *range = range_find((uint64_t)address);
	if (!handle || !range || range->memory != SIM_MAPPED)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_physical *piece = range->owner;
	if (!piece->handles++)
		handle_add(piece, SIM_PHYSICAL);
	*handle = (CUmemGenericAllocationHandle)piece;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *p,
                                                CUmemGenericAllocationHandle handle)
{
	SIM_ENTER();
	const struct sim_physical *piece = (struct sim_physical *)handle;
	if (!p || !handle_is(piece, SIM_PHYSICAL))
		return CUDA_ERROR_INVALID_VALUE;
	*p = piece->properties;
	return CUDA_SUCCESS;
}
