/* Physical memory by handle (cuMemCreate): it is freed when its last handle is released and its
 * last mapping is gone, whichever comes last. Imported handles are their exporter's to count. */
#include "session.h"
#include "table.h"

static struct table handles;  /* handle -> physical memory */
static struct table mappings; /* address -> handle */

static bool is_gone(const struct record *record)
{
	return record->handles == 0 && record->mappings == 0;
}

/* Each of these changes one count and, with the last, takes the record out: *out then tells what to
 * give back. */
static bool count_handle_out(struct record *record, void *out)
{
	record->handles -= record->handles > 0;
	*(struct record *)out = *record;
	return is_gone(record);
}

static bool count_mapping_out(struct record *record, void *out)
{
	record->mappings -= record->mappings > 0;
	*(struct record *)out = *record;
	return is_gone(record);
}

static bool count_handle_in(struct record *record, void *unused)
{
	(void)unused;
	record->handles++;
	return false;
}

static bool count_mapping_in(struct record *record, void *unused)
{
	(void)unused;
	record->mappings++;
	return false;
}

/* The driver looks at the size before it looks for room. */
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
	if (!session_charge(slice, bytes))
		return refuse(bytes, properties);
	CUresult result = real(handle, bytes, properties, flags);
	if (result != CUDA_SUCCESS) {
		session_uncharge(slice, bytes);
		return result;
	}
	struct record record = {.key = *handle, .bytes = bytes, .slice = slice, .handles = 1};
	table_put(&handles, &record);
	return result;
}

CUresult hook_handle_release(__typeof__(&cuMemRelease) real, CUmemGenericAllocationHandle handle)
{
	struct record record;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!table_change(&handles, handle, count_handle_out, &record))
		return real(handle);
	CUresult result = real(handle);
	if (result == CUDA_SUCCESS) {
		if (is_gone(&record))
			session_uncharge(record.slice, record.bytes);
	} else if (!table_change(&handles, handle, count_handle_in, NULL)) {
		record.handles++;
		table_put(&handles, &record);
	}
	return result;
}

CUresult hook_handle_retain(__typeof__(&cuMemRetainAllocationHandle) real,
                            CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result = real(handle, address);
	if (result == CUDA_SUCCESS)
		table_change(&handles, *handle, count_handle_in, NULL);
	return result;
}

CUresult hook_map(__typeof__(&cuMemMap) real, CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = real(address, bytes, offset, handle, flags);
	if (result == CUDA_SUCCESS && table_change(&handles, handle, count_mapping_in, NULL)) {
		struct record mapping = {.key = address, .bytes = bytes, .of = (void *)(uintptr_t)handle};
		table_put(&mappings, &mapping);
	}
	return result;
}

static void unmapped(CUmemGenericAllocationHandle handle)
{
	struct record record;
	if (table_change(&handles, handle, count_mapping_out, &record) && is_gone(&record))
		session_uncharge(record.slice, record.bytes);
}

/* One call may end several mappings that lie side by side; the driver refuses to cut one. */
CUresult hook_unmap(__typeof__(&cuMemUnmap) real, CUdeviceptr address, size_t bytes)
{
	CUresult result = real(address, bytes);
	struct record mapping;
	for (CUdeviceptr at = address; result == CUDA_SUCCESS && at < address + bytes;
	     at += mapping.bytes) {
		if (!table_take(&mappings, at, &mapping))
			break;
		unmapped((CUmemGenericAllocationHandle)(uintptr_t)mapping.of);
	}
	return result;
}
