/* The calls for physical memory by handle (cuMemCreate) and its mappings. Physical memory is freed
 * when its last handle is released and its last mapping is gone.
 *
 * Exported memory is charged here, where it was created, and not where it is imported. It may
 * outlive our last handle, and no figure of the driver's tells whether it does (tried on a GPU:
 * NVML does not count it for an importer). So its charge stays until this process ends. */
#include "hooked.h"
#include "map.h"
#include "pool.h"
#include "session.h"

struct physical_memory {
	uint64_t key; /* its handle */
	uint64_t bytes;
	uint32_t slice;
	uint32_t handles;  /* given out and not released */
	uint32_t mappings; /* of it, now */
	bool is_exported;
};

struct mapping {
	uint64_t key; /* its address */
	uint64_t bytes;
	CUmemGenericAllocationHandle handle;
};

MAP_OF(physical_map, struct physical_memory)
MAP_OF(mapping_map, struct mapping)

static struct physical_map memories;
static struct mapping_map mappings;

enum counter { HANDLES, MAPPINGS };

/* Count a handle or a mapping of the memory in; false: the memory is not ours. */
static bool count_in(CUmemGenericAllocationHandle handle, enum counter counter)
{
	physical_map_lock(&memories);
	struct physical_memory *memory = physical_map_find(&memories, handle);
	if (memory)
		(*(counter == HANDLES ? &memory->handles : &memory->mappings))++;
	physical_map_unlock(&memories);
	return memory != NULL;
}

static bool is_freed(const struct physical_memory *memory)
{
	return memory->handles == 0 && memory->mappings == 0;
}

/* Count one out; with the last one the memory is forgotten, and is_freed(out) tells so. False: the
 * memory is not ours. */
static bool count_out(CUmemGenericAllocationHandle handle, enum counter counter,
                      struct physical_memory *out)
{
	physical_map_lock(&memories);
	struct physical_memory *memory = physical_map_find(&memories, handle);
	if (memory) {
		uint32_t *count = counter == HANDLES ? &memory->handles : &memory->mappings;
		*count -= *count > 0;
		*out = *memory;
		if (is_freed(memory))
			physical_map_remove(&memories, memory);
	}
	physical_map_unlock(&memories);
	return memory != NULL;
}

static void remember_memory(const struct physical_memory *memory)
{
	struct physical_memory replaced;
	physical_map_put(&memories, memory, &replaced);
	if (replaced.key)
		session_release(replaced.slice, replaced.bytes);
}

static void release(const struct physical_memory *memory)
{
	if (!memory->is_exported)
		session_release(memory->slice, memory->bytes);
}

/* The driver checks the size before it looks for free memory. */
static CUresult refuse(size_t bytes, const CUmemAllocationProp *properties)
{
	size_t granule = 0;
	CUresult result = REAL(cuMemGetAllocationGranularity)(&granule, properties,
	                                                      CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (result != CUDA_SUCCESS)
		return result;
	return granule && bytes % granule ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hook_handle_create(__typeof__(&cuMemCreate) real, CUmemGenericAllocationHandle *handle,
                            size_t bytes, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	uint32_t slice = SESSION_NO_SLICE;
	if (properties && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		slice = session_slice_of_device(properties->location.id);
	if (!handle || bytes == 0 || slice == SESSION_NO_SLICE)
		return real(handle, bytes, properties, flags);
	if (!pools_charge(slice, bytes))
		return refuse(bytes, properties);
	CUresult result = real(handle, bytes, properties, flags);
	if (result != CUDA_SUCCESS) {
		session_release(slice, bytes);
		return result;
	}
	struct physical_memory memory = {.key = *handle, .bytes = bytes, .slice = slice, .handles = 1};
	remember_memory(&memory);
	return result;
}

CUresult hook_handle_release(__typeof__(&cuMemRelease) real, CUmemGenericAllocationHandle handle)
{
	struct physical_memory memory;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!count_out(handle, HANDLES, &memory))
		return real(handle);
	CUresult result = real(handle);
	if (result == CUDA_SUCCESS) {
		if (is_freed(&memory))
			release(&memory);
	} else if (!count_in(handle, HANDLES)) {
		memory.handles++;
		remember_memory(&memory);
	}
	return result;
}

CUresult hook_handle_retain(__typeof__(&cuMemRetainAllocationHandle) real,
                            CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result = real(handle, address);
	if (result == CUDA_SUCCESS)
		count_in(*handle, HANDLES);
	return result;
}

CUresult hook_export(__typeof__(&cuMemExportToShareableHandle) real, void *shareable,
                     CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                     unsigned long long flags)
{
	CUresult result = real(shareable, handle, type, flags);
	if (result == CUDA_SUCCESS) {
		physical_map_lock(&memories);
		struct physical_memory *memory = physical_map_find(&memories, handle);
		if (memory)
			memory->is_exported = true;
		physical_map_unlock(&memories);
	}
	return result;
}

static void unmapped(CUmemGenericAllocationHandle handle)
{
	struct physical_memory memory;
	if (count_out(handle, MAPPINGS, &memory) && is_freed(&memory))
		release(&memory);
}

/* The mapping is counted before it exists: another thread may release the handle meanwhile. */
CUresult hook_map(__typeof__(&cuMemMap) real, CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	bool known = count_in(handle, MAPPINGS);
	CUresult result = real(address, bytes, offset, handle, flags);
	if (known && result == CUDA_SUCCESS) {
		struct mapping mapping = {.key = address, .bytes = bytes, .handle = handle}, replaced;
		mapping_map_put(&mappings, &mapping, &replaced);
	} else if (known) {
		unmapped(handle);
	}
	return result;
}

/* One call may unmap several mappings that lie one after the other; the driver refuses to cut one.
 */
CUresult hook_unmap(__typeof__(&cuMemUnmap) real, CUdeviceptr address, size_t bytes)
{
	struct mapping_map taken = {0};
	struct mapping mapping, replaced;
	for (CUdeviceptr at = address; at - address < bytes; at += mapping.bytes) {
		if (!mapping_map_take(&mappings, at, &mapping))
			break;
		mapping_map_put(&taken, &mapping, &replaced);
	}
	CUresult result = real(address, bytes);
	for (uint64_t place = 0; place < taken.map.capacity; place++) {
		const struct mapping *one = mapping_map_at(&taken, place);
		if (one && result == CUDA_SUCCESS)
			unmapped(one->handle);
		else if (one)
			mapping_map_put(&mappings, one, &replaced);
	}
	mapping_map_clear(&taken);
	return result;
}
