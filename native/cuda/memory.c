/* Pointers: cuMemAlloc and its kin, and what the program is told of the memory there is.
 *
 * Every input that the driver would refuse goes to the driver, so that its answer is the driver's
 * own; a charge is made only for what it could give. */
#include "memory.h"

#include "aliquot/ledger.h"
#include "page.h"
#include "pool.h"
#include "session.h"

#define PITCH_GRANULE 512u
#define MANAGED_GRANULE (UINT64_C(64) << 10)

struct table memory_pointers, memory_arrays, memory_imports;

/* Seen on a card: more than 1 MiB comes in whole pages of 2 MiB. */
uint64_t memory_cost(uint64_t bytes)
{
	if (bytes <= PAGE_LARGEST)
		return bytes;
	uint64_t rounded = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	return rounded < bytes ? UINT64_MAX : rounded;
}

/* A pointer's charge: its own pages, or the one that it may share. */
static void set_cost(struct memory_request *request, uint64_t bytes)
{
	bool small = bytes <= PAGE_LARGEST;
	request->bytes = small ? PAGE_BYTES : memory_cost(bytes);
	request->kind = small ? RECORD_SMALL : RECORD_PLAIN;
}

/* What is charged before the driver is asked: of what shares pages, a page. */
static uint64_t charge_of(const struct memory_request *request)
{
	return request->kind == RECORD_FILLING ? PAGE_BYTES : request->bytes;
}

bool memory_begin(const struct memory_request *request)
{
	if (!session_charge(request->slice, charge_of(request)))
		return false;
	if (request->kind == RECORD_MANAGED)
		session_count_managed(request->slice, (int64_t)request->bytes);
	return true;
}

/* What is no longer needed of the charge without this record. */
static uint64_t give_back_bytes(const struct record *record)
{
	switch (record->kind) {
	case RECORD_POOLED:
		return 0;
	case RECORD_SMALL:
		return page_count_out(record->key) ? PAGE_BYTES : 0;
	case RECORD_FILLING:
		return page_empty(record->slice, record->bytes) ? PAGE_BYTES : 0;
	default:
		return ledger_round(record->bytes);
	}
}

static void give_back(const struct record *record)
{
	session_uncharge(record->slice, give_back_bytes(record));
	if (record->kind == RECORD_MANAGED)
		session_count_managed(record->slice, -(int64_t)record->bytes);
}

/* With no memory left for the record its charge stays until the process ends. */
static void remember(struct table *table, const struct record *record)
{
	struct record replaced;
	table_put(table, record, &replaced);
	if (replaced.key == 0)
		return;
	if (replaced.kind == RECORD_POOLED)
		pool_freed_async(replaced.of, replaced.bytes);
	else
		give_back(&replaced);
}

CUresult memory_end(const struct memory_request *request, CUresult result, uint64_t key)
{
	struct record record = {
		.key = key,
		.bytes = request->bytes,
		.of = request->of,
		.slice = request->slice,
		.kind = (uint16_t)request->kind,
	};
	bool needed = result == CUDA_SUCCESS;
	if (needed && request->kind == RECORD_SMALL)
		needed = page_count_in(key);
	else if (needed && request->kind == RECORD_FILLING)
		needed = page_fill(request->slice, request->bytes);
	if (!needed)
		session_uncharge(request->slice, charge_of(request));
	if (result != CUDA_SUCCESS && request->kind == RECORD_MANAGED)
		session_count_managed(request->slice, -(int64_t)request->bytes);
	if (result == CUDA_SUCCESS)
		remember(request->table, &record);
	return result;
}

CUresult memory_freed(struct table *table, const struct record *record, CUresult result)
{
	if (record && result == CUDA_SUCCESS)
		give_back(record);
	else if (record)
		remember(table, record);
	return result;
}

void memory_put_pooled(CUdeviceptr pointer, uint64_t bytes, uint32_t slice, CUmemoryPool pool)
{
	struct record record = {.key = pointer,
	                        .bytes = bytes,
	                        .of = pool,
	                        .slice = slice,
	                        .kind = RECORD_POOLED};
	remember(&memory_pointers, &record);
}

void memory_take_context(CUcontext context, struct memory_of_context *out)
{
	*out = (struct memory_of_context){0};
	table_move_of(&memory_pointers, context, &out->pointers);
	table_move_of(&memory_arrays, context, &out->arrays);
	table_move_of(&memory_imports, context, &out->imports);
}

struct context_sums {
	uint64_t bytes[ALIQUOT_MAX_GPUS], managed[ALIQUOT_MAX_GPUS];
};

static void add_up(const struct record *record, void *argument)
{
	struct context_sums *sums = argument;
	sums->bytes[record->slice] += give_back_bytes(record);
	if (record->kind == RECORD_MANAGED)
		sums->managed[record->slice] += record->bytes;
}

void memory_give_back_context(struct memory_of_context *memory)
{
	struct context_sums sums = {0};
	table_empty(&memory->pointers, add_up, &sums);
	table_empty(&memory->arrays, add_up, &sums);
	table_empty(&memory->imports, add_up, &sums);
	for (uint32_t slice = 0; slice < ALIQUOT_MAX_GPUS; slice++) {
		session_uncharge(slice, sums.bytes[slice]);
		session_count_managed(slice, -(int64_t)sums.managed[slice]);
	}
}

static void keep(const struct record *record, void *table)
{
	remember(table, record);
}

void memory_keep_context(struct memory_of_context *memory)
{
	table_empty(&memory->pointers, keep, &memory_pointers);
	table_empty(&memory->arrays, keep, &memory_arrays);
	table_empty(&memory->imports, keep, &memory_imports);
}

/* Fill in the current context and its slice; false: there is none, and the driver shall say so. */
static bool in_current_context(struct memory_request *request)
{
	CUcontext context = NULL;
	request->table = &memory_pointers;
	request->slice = session_slice_of_current_context();
	if (request->slice == SESSION_NO_SLICE || REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
		return false;
	request->of = context;
	return true;
}

CUresult hook_alloc(__typeof__(&cuMemAlloc_v2) real, CUdeviceptr *pointer, size_t bytes)
{
	struct memory_request request;
	set_cost(&request, bytes);
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!pointer || bytes == 0 || !in_current_context(&request))
		return real(pointer, bytes);
	if (!memory_begin(&request)) {
		*pointer = 0;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = real(pointer, bytes);
	return memory_end(&request, result, *pointer);
}

CUresult hook_alloc_managed(__typeof__(&cuMemAllocManaged) real, CUdeviceptr *pointer, size_t bytes,
                            unsigned flags)
{
	uint64_t granules = bytes / MANAGED_GRANULE + (bytes % MANAGED_GRANULE != 0);
	struct memory_request request = {.bytes = granules * MANAGED_GRANULE, .kind = RECORD_MANAGED};
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!pointer || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) ||
	    !in_current_context(&request))
		return real(pointer, bytes, flags);
	if (!memory_begin(&request)) {
		*pointer = 0;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = real(pointer, bytes, flags);
	return memory_end(&request, result, *pointer);
}

CUresult hook_alloc_pitch(__typeof__(&cuMemAllocPitch_v2) real, CUdeviceptr *pointer, size_t *pitch,
                          size_t width, size_t height, unsigned element)
{
	struct memory_request request;
	size_t row, expected;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!pointer || !pitch || width == 0 || height == 0 ||
	    (element != 4 && element != 8 && element != 16) || !in_current_context(&request) ||
	    __builtin_add_overflow(width, PITCH_GRANULE - 1, &row) ||
	    __builtin_mul_overflow(row / PITCH_GRANULE * PITCH_GRANULE, height, &expected))
		return real(pointer, pitch, width, height, element);
	set_cost(&request, expected);
	if (!memory_begin(&request)) {
		*pointer = *pitch = 0;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = real(pointer, pitch, width, height, element);
	if (result == CUDA_SUCCESS && memory_cost(*pitch * height) > request.bytes) {
		/* A card with wider rows than those we know. */
		uint64_t more = memory_cost(*pitch * height) - request.bytes;
		if (!session_charge(request.slice, more)) {
			REAL(cuMemFree_v2)(*pointer);
			session_uncharge(request.slice, request.bytes);
			*pointer = *pitch = 0;
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		request.bytes += more;
		request.kind = RECORD_PLAIN;
	}
	return memory_end(&request, result, *pointer);
}

CUresult hook_free(__typeof__(&cuMemFree_v2) real, CUdeviceptr pointer)
{
	struct record record;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!table_take(&memory_pointers, pointer, &record))
		return real(pointer);
	CUresult result = real(pointer);
	if (record.kind != RECORD_POOLED || result != CUDA_SUCCESS)
		return memory_freed(&memory_pointers, &record, result);
	pool_freed(record.of, record.bytes);
	return result;
}

CUresult hook_free_async(__typeof__(&cuMemFreeAsync) real, CUdeviceptr pointer, CUstream stream)
{
	struct record record;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!table_take(&memory_pointers, pointer, &record))
		return real(pointer, stream);
	CUresult result = real(pointer, stream);
	if (record.kind != RECORD_POOLED || result != CUDA_SUCCESS)
		return memory_freed(&memory_pointers, &record, result);
	pool_freed_async(record.of, record.bytes);
	return result;
}

CUresult hook_total_memory(__typeof__(&cuDeviceTotalMem_v2) real, size_t *bytes, CUdevice device)
{
	CUresult result = real(bytes, device);
	uint32_t slice = session_slice_of_device(device);
	if (result == CUDA_SUCCESS && slice != SESSION_NO_SLICE)
		*bytes = session_limits()->slices[slice].limit_bytes;
	return result;
}

CUresult hook_total_memory_v1(__typeof__(&cuDeviceTotalMem) real, unsigned *bytes, CUdevice device)
{
	CUresult result = real(bytes, device);
	uint32_t slice = session_slice_of_device(device);
	if (result == CUDA_SUCCESS && slice != SESSION_NO_SLICE &&
	    session_limits()->slices[slice].limit_bytes < *bytes)
		*bytes = (unsigned)session_limits()->slices[slice].limit_bytes;
	return result;
}

CUresult hook_memory_info(__typeof__(&cuMemGetInfo_v2) real, size_t *free_bytes,
                          size_t *total_bytes)
{
	CUresult result = real(free_bytes, total_bytes);
	uint32_t slice = session_is_open() ? session_slice_of_current_context() : SESSION_NO_SLICE;
	if (result != CUDA_SUCCESS || slice == SESSION_NO_SLICE)
		return result;
	/* Others may have left less on the card than the slice still has. */
	if (free_bytes && session_left(slice) < *free_bytes)
		*free_bytes = session_left(slice);
	if (total_bytes)
		*total_bytes = session_limits()->slices[slice].limit_bytes;
	return result;
}
