/* The calls that create arrays and mipmapped arrays, and import memory from another API.
 *
 * Only the GPU knows how it lays an array out. The texels are charged here; the arbiter finds the
 * padding in NVML's figure. */
#include "allocation.h"
#include "page.h"
#include "physical.h"
#include "session.h"

/* Bits of a texel, on average where planes or blocks share them (seen on an H200 for the formats that it
 * has). `channels` counts for the formats that leave it open. A format that is newer than this list is
 * charged as the largest of all. */
static uint64_t texel_bits(CUarray_format format, unsigned channels)
{
	switch ((int)format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return UINT64_C(8) * channels;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return UINT64_C(16) * channels;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return UINT64_C(32) * channels;
	case CU_AD_FORMAT_BC1_UNORM:
	case CU_AD_FORMAT_BC1_UNORM_SRGB:
	case CU_AD_FORMAT_BC4_UNORM:
	case CU_AD_FORMAT_BC4_SNORM:
		return 4;
	case CU_AD_FORMAT_BC2_UNORM:
	case CU_AD_FORMAT_BC2_UNORM_SRGB:
	case CU_AD_FORMAT_BC3_UNORM:
	case CU_AD_FORMAT_BC3_UNORM_SRGB:
	case CU_AD_FORMAT_BC5_UNORM:
	case CU_AD_FORMAT_BC5_SNORM:
	case CU_AD_FORMAT_BC6H_UF16:
	case CU_AD_FORMAT_BC6H_SF16:
	case CU_AD_FORMAT_BC7_UNORM:
	case CU_AD_FORMAT_BC7_UNORM_SRGB:
	case CU_AD_FORMAT_UNORM_INT8X1:
	case CU_AD_FORMAT_SNORM_INT8X1:
		return 8;
	case CU_AD_FORMAT_NV12:
	case CU_AD_FORMAT_UINT8_SEMIPLANAR_420:
	case CU_AD_FORMAT_UINT8_PLANAR_420:
		return 12;
	case CU_AD_FORMAT_NV16:
	case CU_AD_FORMAT_YUY2:
	case CU_AD_FORMAT_UINT8_PACKED_422:
	case CU_AD_FORMAT_UINT8_SEMIPLANAR_422:
	case CU_AD_FORMAT_UINT8_PLANAR_422:
	case CU_AD_FORMAT_UNORM_INT8X2:
	case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT16X1:
	case CU_AD_FORMAT_SNORM_INT16X1:
		return 16;
	case CU_AD_FORMAT_P010:
	case CU_AD_FORMAT_P016:
	case CU_AD_FORMAT_Y444_PLANAR8:
	case CU_AD_FORMAT_YUV444_8bit_SemiPlanar:
	case CU_AD_FORMAT_UINT16_SEMIPLANAR_420:
	case CU_AD_FORMAT_UINT16_PLANAR_420:
	case CU_AD_FORMAT_UINT8_SEMIPLANAR_444:
	case CU_AD_FORMAT_UINT8_PLANAR_444:
		return 24;
	case CU_AD_FORMAT_P210:
	case CU_AD_FORMAT_P216:
	case CU_AD_FORMAT_Y210:
	case CU_AD_FORMAT_Y216:
	case CU_AD_FORMAT_AYUV:
	case CU_AD_FORMAT_Y410:
	case CU_AD_FORMAT_UINT8_PACKED_444:
	case CU_AD_FORMAT_UINT16_SEMIPLANAR_422:
	case CU_AD_FORMAT_UINT16_PLANAR_422:
	case CU_AD_FORMAT_UNORM_INT8X4:
	case CU_AD_FORMAT_SNORM_INT8X4:
	case CU_AD_FORMAT_UNORM_INT16X2:
	case CU_AD_FORMAT_SNORM_INT16X2:
	case CU_AD_FORMAT_UNORM_INT_101010_2:
		return 32;
	case CU_AD_FORMAT_Y444_PLANAR10:
	case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
	case CU_AD_FORMAT_UINT16_SEMIPLANAR_444:
	case CU_AD_FORMAT_UINT16_PLANAR_444:
		return 48;
	case CU_AD_FORMAT_Y416:
	case CU_AD_FORMAT_UNORM_INT16X4:
	case CU_AD_FORMAT_SNORM_INT16X4:
		return 64;
	default:
		return 128;
	}
}

static bool is_block_compressed(CUarray_format format)
{
	return format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB;
}

/* The length of a side at a level, in whole blocks of `block` texels. */
static uint64_t side(uint64_t length, unsigned level, uint64_t block)
{
	uint64_t texels = length >> level ? length >> level : 1;
	return texels > UINT64_MAX - block ? texels : (texels + block - 1) / block * block;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned level)
{
	uint64_t bits = texel_bits(array->Format, array->NumChannels ? array->NumChannels : 1);
	uint64_t block = is_block_compressed(array->Format) ? 4 : 1;
	bool layered = array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t sides[] = {side(array->Width, level, block), side(array->Height, level, block),
	                    side(array->Depth, layered ? 0 : level, 1)};
	for (unsigned i = 0; i < 3; i++)
		if (__builtin_mul_overflow(bits, sides[i], &bits))
			return UINT64_MAX;
	return bits / 8 + (bits % 8 != 0);
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
	uint64_t sum = 0;
	if (array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0; /* cuMemMapArrayAsync gives it memory that is charged by its handle (physical.h) */
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

/* The calls that create an array differ in the type of the descriptor. */
#define CREATE(name, symbol, descriptor, wide)                                                     \
	CUresult name(__typeof__(&symbol) real, CUarray *array, const descriptor *wanted)              \
	{                                                                                              \
		struct allocation_request request;                                                         \
		if (!session_is_open())                                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                     \
		if (!array || !wanted)                                                                     \
			return real(array, wanted);                                                            \
		const CUDA_ARRAY3D_DESCRIPTOR all = wide;                                                  \
		if (!make_request(&request, array_bytes(&all, 1)))                                         \
			return real(array, wanted);                                                            \
		if (!allocation_charge(&request))                                                          \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
		CUresult result = real(array, wanted);                                                     \
		return allocation_finish(&request, result, key_of(*array));                                \
	}

#define FLAT                                                                                       \
	{.Width = wanted->Width,                                                                       \
	 .Height = wanted->Height,                                                                     \
	 .Format = wanted->Format,                                                                     \
	 .NumChannels = wanted->NumChannels}
#define DEEP                                                                                       \
	{.Width = wanted->Width,                                                                       \
	 .Height = wanted->Height,                                                                     \
	 .Depth = wanted->Depth,                                                                       \
	 .Format = wanted->Format,                                                                     \
	 .NumChannels = wanted->NumChannels,                                                           \
	 .Flags = wanted->Flags}

CREATE(hook_array_create, cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, FLAT)
CREATE(hook_array_create_v1, cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, FLAT)
CREATE(hook_array3d_create, cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, DEEP)
CREATE(hook_array3d_create_v1, cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, DEEP)

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

static CUresult ended(const void *array, const struct allocation *allocation, CUresult result)
{
	if (result == CUDA_SUCCESS)
		physical_array_ended(array);
	return allocation_freed(&allocated_arrays, allocation, result);
}

CUresult hook_array_destroy(__typeof__(&cuArrayDestroy) real, CUarray array)
{
	struct allocation allocation;
	bool known = session_is_open() &&
	             allocation_map_take(&allocated_arrays, key_of(array), &allocation);
	return ended(array, known ? &allocation : NULL, real(array));
}

CUresult hook_mipmap_destroy(__typeof__(&cuMipmappedArrayDestroy) real, CUmipmappedArray array)
{
	struct allocation allocation;
	bool known = session_is_open() &&
	             allocation_map_take(&allocated_arrays, key_of(array), &allocation);
	return ended(array, known ? &allocation : NULL, real(array));
}

CUresult hook_external_destroy(__typeof__(&cuDestroyExternalMemory) real, CUexternalMemory memory)
{
	struct allocation allocation;
	bool known = session_is_open() &&
	             allocation_map_take(&allocated_imports, key_of(memory), &allocation);
	return allocation_freed(&allocated_imports, known ? &allocation : NULL, real(memory));
}
