/* The calls for physical memory by handle (cuMemCreate), its mappings, and what else holds it.
 *
 * Physical memory is charged where it was created, until its last handle is released, its last
 * mapping is gone, no array or multicast object is bound to it, and no descriptor of it is open
 * (exported.h, which also says which process is charged for imported memory). */
#include "physical.h"

#include "exported.h"
#include "hooked.h"
#include "map.h"
#include "pool.h"
#include "session.h"
#include "swap/places.h"

#include <stdlib.h>

struct physical_memory {
	uint64_t key; /* its handle */
	uint64_t bytes;
	uint32_t slice;
	uint32_t handles;  /* given out and not released */
	uint32_t mappings; /* of it, now, at addresses and in what holds it */
	uint64_t mark;     /* of its descriptors: exported.h */
};

struct mapping {
	uint64_t key; /* its address */
	uint64_t bytes;
	CUmemGenericAllocationHandle handle; /* 0: of memory that is not ours */
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
		exported_release(replaced.mark, replaced.slice, replaced.bytes);
}

static void release(const struct physical_memory *memory)
{
	exported_release(memory->mark, memory->slice, memory->bytes);
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

static void unmapped(CUmemGenericAllocationHandle handle)
{
	struct physical_memory memory;
	if (count_out(handle, MAPPINGS, &memory) && is_freed(&memory))
		release(&memory);
}

/* --- what holds memory without an address: sparse arrays and multicast objects ------------------ */

/* The driver keeps memory that is mapped into an array when its handle is released, and NVML shows it
 * for no process (seen on an H200). We do not follow which part of the holder has which memory: all
 * that was ever put into one counts as held until the holder ends. */
struct attachment {
	uint64_t holder; /* the array, or the handle of the multicast object */
	CUmemGenericAllocationHandle memory;
	CUcontext context; /* the holder ends with it; NULL: with its handle */
};

static struct aliquot_lock attaching;
static struct attachment *attachments;
static size_t attached, places;

/* Whether it is there by now; false: there is no memory for it. */
static bool add_attachment(const struct attachment *added, bool *is_new)
{
	*is_new = false;
	for (size_t i = 0; i < attached; i++)
		if (attachments[i].holder == added->holder && attachments[i].memory == added->memory)
			return true;
	if (attached == places) {
		struct attachment *more = realloc(attachments, (places + 64) * sizeof(*more));
		if (!more)
			return false;
		attachments = more;
		places += 64;
	}
	attachments[attached++] = *added;
	*is_new = true;
	return true;
}

/* Whether it was not there before. */
static bool attach(uint64_t holder, CUcontext context, CUmemGenericAllocationHandle memory)
{
	struct attachment added = {.holder = holder, .memory = memory, .context = context};
	bool is_new;
	if (!count_in(memory, MAPPINGS))
		return false;
	aliquot_lock(&attaching);
	bool kept = add_attachment(&added, &is_new);
	aliquot_unlock(&attaching);
	if (kept && !is_new)
		unmapped(memory);
	return is_new;
}

/* Undo `attach`. */
static void detach_memory(uint64_t holder, CUmemGenericAllocationHandle memory)
{
	bool found = false;
	aliquot_lock(&attaching);
	for (size_t i = 0; i < attached && !found; i++) {
		found = attachments[i].holder == holder && attachments[i].memory == memory;
		if (found)
			attachments[i] = attachments[--attached];
	}
	aliquot_unlock(&attaching);
	if (found)
		unmapped(memory);
}

/* Take one that ends with the holder or the context; false: there are no more. */
static bool take_attachment(uint64_t holder, CUcontext context, struct attachment *out)
{
	bool found = false;
	aliquot_lock(&attaching);
	for (size_t i = 0; i < attached && !found; i++) {
		found = holder ? attachments[i].holder == holder : attachments[i].context == context;
		if (found) {
			*out = attachments[i];
			attachments[i] = attachments[--attached];
		}
	}
	aliquot_unlock(&attaching);
	return found;
}

static void detach(uint64_t holder, CUcontext context)
{
	struct attachment ended;
	while (take_attachment(holder, context, &ended))
		unmapped(ended.memory);
}

void physical_array_ended(const void *array)
{
	if (array)
		detach((uint64_t)(uintptr_t)array, NULL);
}

void physical_context_ended(CUcontext context)
{
	detach(0, context);
}

CUresult hook_map_array(__typeof__(&cuMemMapArrayAsync) real, CUarrayMapInfo *list, unsigned count,
                        CUstream stream)
{
	CUcontext context = NULL;
	REAL(cuCtxGetCurrent)(&context);
	for (unsigned i = 0; list && session_is_open() && i < count; i++)
		if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
			attach((uint64_t)(uintptr_t)list[i].resource.array, context,
			       list[i].memHandle.memHandle);
	return real(list, count, stream);
}

/* The body of a hook that binds memory to a multicast object, before `call` does; a program that is
 * refused may go on without the object, and keep it. */
#define BIND(object, bound, call)                                                                  \
	do {                                                                                           \
		CUmemGenericAllocationHandle to_bind = (bound);                                            \
		bool is_new = (object) && session_is_open() && attach(object, NULL, to_bind);              \
		CUresult result = call;                                                                    \
		if (result != CUDA_SUCCESS && is_new)                                                      \
			detach_memory(object, to_bind);                                                        \
		return result;                                                                             \
	} while (0)

CUresult hook_multicast_bind(__typeof__(&cuMulticastBindMem) real,
                             CUmemGenericAllocationHandle object, size_t object_offset,
                             CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                             unsigned long long flags)
{
	BIND(object, memory, real(object, object_offset, memory, offset, bytes, flags));
}

CUresult hook_multicast_bind_v2(__typeof__(&cuMulticastBindMem_v2) real,
                                CUmemGenericAllocationHandle object, CUdevice device,
                                size_t object_offset, CUmemGenericAllocationHandle memory,
                                size_t offset, size_t bytes, unsigned long long flags)
{
	BIND(object, memory, real(object, device, object_offset, memory, offset, bytes, flags));
}

/* --- handles ----------------------------------------------------------------------------------- */

CUresult hook_handle_release(__typeof__(&cuMemRelease) real, CUmemGenericAllocationHandle handle)
{
	struct physical_memory memory;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!count_out(handle, HANDLES, &memory)) {
		CUresult released = real(handle);
		if (released == CUDA_SUCCESS && handle)
			detach(handle, NULL); /* if it is a multicast object */
		return released;
	}
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
	void *asked = (void *)(uintptr_t)places_driver_address((CUdeviceptr)(uintptr_t)address);
	CUresult result = real(handle, asked);
	if (result == CUDA_SUCCESS)
		count_in(*handle, HANDLES);
	return result;
}

/* A descriptor of the memory was made. */
static void mark(CUmemGenericAllocationHandle handle, int descriptor)
{
	physical_map_lock(&memories);
	struct physical_memory *memory = physical_map_find(&memories, handle);
	if (memory)
		memory->mark = exported_descriptor(memory->mark, descriptor);
	physical_map_unlock(&memories);
}

CUresult hook_export(__typeof__(&cuMemExportToShareableHandle) real, void *shareable,
                     CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                     unsigned long long flags)
{
	CUresult result = real(shareable, handle, type, flags);
	if (result == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		mark(handle, *(const int *)shareable);
	return result;
}

/* --- mappings ---------------------------------------------------------------------------------- */

/* The mapping is counted before it exists: another thread may release the handle meanwhile. */
CUresult hook_map(__typeof__(&cuMemMap) real, CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED; /* a forked child may find our locks taken */
	address = places_driver_address(address);
	bool ours = count_in(handle, MAPPINGS);
	CUresult result = real(address, bytes, offset, handle, flags);
	if (result == CUDA_SUCCESS) {
		struct mapping mapping = {.key = address, .bytes = bytes, .handle = ours ? handle : 0};
		struct mapping replaced;
		mapping_map_put(&mappings, &mapping, &replaced);
	} else if (ours) {
		unmapped(handle);
	}
	return result;
}

/* Move the mappings that begin in the range to `taken`. */
static void take_mappings(CUdeviceptr address, size_t bytes, struct mapping_map *taken)
{
	struct mapping mapping, replaced;
	CUdeviceptr at = address;
	/* Mostly they lie one after the other. */
	for (; at - address < bytes && mapping_map_take(&mappings, at, &mapping); at += mapping.bytes)
		mapping_map_put(taken, &mapping, &replaced);
	if (at - address >= bytes)
		return;
	mapping_map_lock(&mappings);
	for (uint64_t place = 0; place < mappings.map.capacity;) {
		struct mapping *one = mapping_map_at(&mappings, place);
		if (one && one->key - address < bytes && mapping_map_put(taken, one, &replaced))
			mapping_map_remove(&mappings, one); /* another may be here now: look again */
		else
			place++;
	}
	mapping_map_unlock(&mappings);
}

/* One call may unmap several mappings, of any process's memory; the driver refuses to cut one. */
CUresult hook_unmap(__typeof__(&cuMemUnmap) real, CUdeviceptr address, size_t bytes)
{
	struct mapping_map taken = {0};
	struct mapping replaced;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	address = places_driver_address(address);
	take_mappings(address, bytes, &taken);
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

void physical_range_exported(CUdeviceptr address, size_t bytes, int descriptor)
{
	struct mapping_map found = {0};
	struct mapping replaced;
	mapping_map_lock(&mappings);
	for (uint64_t place = 0; place < mappings.map.capacity; place++) {
		const struct mapping *one = mapping_map_at(&mappings, place);
		if (one && one->key < address + bytes && address < one->key + one->bytes)
			mapping_map_put(&found, one, &replaced);
	}
	mapping_map_unlock(&mappings);
	for (uint64_t place = 0; place < found.map.capacity; place++) {
		const struct mapping *one = mapping_map_at(&found, place);
		if (one)
			mark(one->handle, descriptor);
	}
	mapping_map_clear(&found);
}

/* The handle of the memory that is mapped at this address; 0: none of ours. */
static CUmemGenericAllocationHandle handle_at(CUdeviceptr address)
{
	CUmemGenericAllocationHandle handle = 0;
	mapping_map_lock(&mappings);
	for (uint64_t place = 0; place < mappings.map.capacity && !handle; place++) {
		const struct mapping *one = mapping_map_at(&mappings, place);
		if (one && address - one->key < one->bytes)
			handle = one->handle;
	}
	mapping_map_unlock(&mappings);
	return handle;
}

CUresult hook_multicast_bind_address(__typeof__(&cuMulticastBindAddr) real,
                                     CUmemGenericAllocationHandle object, size_t offset,
                                     CUdeviceptr address, size_t bytes, unsigned long long flags)
{
	address = places_driver_address(address);
	BIND(object, handle_at(address), real(object, offset, address, bytes, flags));
}

CUresult hook_multicast_bind_address_v2(__typeof__(&cuMulticastBindAddr_v2) real,
                                        CUmemGenericAllocationHandle object, CUdevice device,
                                        size_t offset, CUdeviceptr address, size_t bytes,
                                        unsigned long long flags)
{
	address = places_driver_address(address);
	BIND(object, handle_at(address), real(object, device, offset, address, bytes, flags));
}
