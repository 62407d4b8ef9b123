/* Physical memory by handle (cuMemCreate): it is freed when its last handle is released and its
 * last mapping is gone, whichever comes last.
 *
 * Memory that was exported is counted here, where it was made, and not again where it is imported. It
 * may outlive our last handle, and no figure of the driver's tells whether it does (tried on a card:
 * NVML does not count it for an importer). So its charge stays until this process ends. */
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

static bool mark_exported(struct record *record, void *unused)
{
	(void)unused;
	record->exported = 1;
	return false;
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

static void remember(struct table *table, const struct record *record)
{
	struct record replaced;
	table_put(table, record, &replaced);
	if (replaced.key && table == &handles)
		session_uncharge(replaced.slice, replaced.bytes);
}

static void give_back(const struct record *record)
{
	if (!record->exported)
		session_uncharge(record->slice, record->bytes);
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
	remember(&handles, &record);
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
			give_back(&record);
	} else if (!table_change(&handles, handle, count_handle_in, NULL)) {
		record.handles++;
		remember(&handles, &record);
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

CUresult hook_export(__typeof__(&cuMemExportToShareableHandle) real, void *shareable,
                     CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                     unsigned long long flags)
{
	CUresult result = real(shareable, handle, type, flags);
	if (result == CUDA_SUCCESS)
		table_change(&handles, handle, mark_exported, NULL);
	return result;
}

static void unmapped(CUmemGenericAllocationHandle handle)
{
	struct record record;
	if (table_change(&handles, handle, count_mapping_out, &record) && is_gone(&record))
		give_back(&record);
}

/* Counted before it is there: another thread may release the handle meanwhile. */
CUresult hook_map(__typeof__(&cuMemMap) real, CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	bool known = table_change(&handles, handle, count_mapping_in, NULL);
	CUresult result = real(address, bytes, offset, handle, flags);
	if (known && result == CUDA_SUCCESS) {
		struct record mapping = {.key = address, .bytes = bytes, .of = (void *)(uintptr_t)handle};
		remember(&mappings, &mapping);
	} else if (known) {
		unmapped(handle);
	}
	return result;
}

static void keep_mapping(const struct record *mapping, void *unused)
{
	(void)unused;
	remember(&mappings, mapping);
}

static void end_mapping(const struct record *mapping, void *unused)
{
	(void)unused;
	unmapped((CUmemGenericAllocationHandle)(uintptr_t)mapping->of);
}

/* One call may end several mappings that lie side by side; the driver refuses to cut one. */
CUresult hook_unmap(__typeof__(&cuMemUnmap) real, CUdeviceptr address, size_t bytes)
{
	struct table taken = {0};
	struct record mapping, replaced;
	for (CUdeviceptr at = address; at - address < bytes; at += mapping.bytes) {
		if (!table_take(&mappings, at, &mapping))
			break;
		table_put(&taken, &mapping, &replaced);
	}
	CUresult result = real(address, bytes);
	table_empty(&taken, result == CUDA_SUCCESS ? end_mapping : keep_mapping, NULL);
	return result;
}
