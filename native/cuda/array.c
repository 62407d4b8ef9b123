/* The calls that create arrays and mipmapped arrays, and import memory from another API.
 *
 * Only the GPU knows how it lays an array out. The texels are charged here; the arbiter finds the
 * padding in NVML's figure. */
#include "allocation.h"
#include "page.h"
#include "session.h"

static uint64_t texel_bytes(CUarray_format format, unsigned channels)
{
	uint64_t size;
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		size = 1;
		break;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		size = 2;
		break;
	default:
		size = 4;
	}
	return size * (channels ? channels : 1);
}

static uint64_t extent(uint64_t length)
{
	return length ? length : 1;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned level)
{
	uint64_t bytes = texel_bytes(array->Format, array->NumChannels);
	bool layered = array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t depth = layered ? array->Depth : array->Depth >> level;
	uint64_t sides[] = {extent(array->Width >> level), extent(array->Height >> level),
	                    extent(depth)};
	for (unsigned i = 0; i < 3; i++)
		if (__builtin_mul_overflow(bytes, sides[i], &bytes))
			return UINT64_MAX;
	return bytes;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
	uint64_t sum = 0;
	if (array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0; /* cuMemMapArrayAsync gives it memory, from handles that are charged */
	for (unsigned level = 0; level < (levels < 32 ? levels : 32); level++)
		if (__builtin_add_overflow(sum, level_bytes(array, level), &sum))
			return UINT64_MAX;
	return sum;
}

/* False: nothing is to be charged, and the driver shall answer. */
static bool make_request(struct allocation_request *request, uint64_t bytes)
{
	bool small = bytes <= PAGE_LARGEST;
	*request = (struct allocation_request){
		.map = &allocated_arrays,
		.bytes = small ? bytes : allocation_cost(bytes),
		.kind = small ? ALLOCATION_SMALL_ARRAY : ALLOCATION_OWN_PAGES,
	};
	return bytes != 0 && allocation_in_current_context(request);
}

static uint64_t key_of(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

CUresult hook_array_create(__typeof__(&cuArrayCreate_v2) real, CUarray *array,
                           const CUDA_ARRAY_DESCRIPTOR *wanted)
{
	struct allocation_request request;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!array || !wanted)
		return real(array, wanted);
	CUDA_ARRAY3D_DESCRIPTOR flat = {.Width = wanted->Width,
	                                .Height = wanted->Height,
	                                .Format = wanted->Format,
	                                .NumChannels = wanted->NumChannels};
	if (!make_request(&request, array_bytes(&flat, 1)))
		return real(array, wanted);
	if (!allocation_charge(&request))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real(array, wanted);
	return allocation_finish(&request, result, key_of(*array));
}

CUresult hook_array3d_create(__typeof__(&cuArray3DCreate_v2) real, CUarray *array,
                             const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
	struct allocation_request request;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!array || !wanted || !make_request(&request, array_bytes(wanted, 1)))
		return real(array, wanted);
	if (!allocation_charge(&request))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real(array, wanted);
	return allocation_finish(&request, result, key_of(*array));
}

CUresult hook_mipmap_create(__typeof__(&cuMipmappedArrayCreate) real, CUmipmappedArray *array,
                            const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned levels)
{
	struct allocation_request request;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!array || !wanted || !make_request(&request, array_bytes(wanted, levels)))
		return real(array, wanted, levels);
	if (!allocation_charge(&request))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real(array, wanted, levels);
	return allocation_finish(&request, result, key_of(*array));
}

CUresult hook_external_import(__typeof__(&cuImportExternalMemory) real, CUexternalMemory *memory,
                              const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *wanted)
{
	struct allocation_request request;
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!memory || !wanted || !make_request(&request, wanted->size))
		return real(memory, wanted);
	request.map = &allocated_imports;
	request.bytes = wanted->size;
	request.kind = ALLOCATION_OWN_PAGES;
	if (!allocation_charge(&request))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real(memory, wanted);
	return allocation_finish(&request, result, key_of(*memory));
}

CUresult hook_array_destroy(__typeof__(&cuArrayDestroy) real, CUarray array)
{
	struct allocation allocation;
	bool known = session_is_open() &&
	             allocation_map_take(&allocated_arrays, key_of(array), &allocation);
	return allocation_freed(&allocated_arrays, known ? &allocation : NULL, real(array));
}

CUresult hook_mipmap_destroy(__typeof__(&cuMipmappedArrayDestroy) real, CUmipmappedArray array)
{
	struct allocation allocation;
	bool known = session_is_open() &&
	             allocation_map_take(&allocated_arrays, key_of(array), &allocation);
	return allocation_freed(&allocated_arrays, known ? &allocation : NULL, real(array));
}

CUresult hook_external_destroy(__typeof__(&cuDestroyExternalMemory) real, CUexternalMemory memory)
{
	struct allocation allocation;
	bool known = session_is_open() &&
	             allocation_map_take(&allocated_imports, key_of(memory), &allocation);
	return allocation_freed(&allocated_imports, known ? &allocation : NULL, real(memory));
}
