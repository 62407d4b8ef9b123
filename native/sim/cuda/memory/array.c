/* Arrays and mipmapped arrays: rows of elements in pages of device memory.
 *
 * As on a real GPU, arrays of up to 1 MiB share pages.
 */
#include "cuda/core/context_end.h"
#include "cuda/graph/capture.h"
#include "cuda/stream/copy.h"

#include <string.h>

struct sim_array {
	CUDA_ARRAY3D_DESCRIPTOR descriptor;
	struct sim_context *context;
	uint64_t base, size;
	uint64_t taken; /* bytes passed to take(); 0 for a level of a mipmap and for a sparse array */
	struct sim_physical *tiles; /* of a sparse array: what cuMemMapArrayAsync mapped; or NULL */
	size_t pitch, height;
	struct sim_mipmap *mipmap; /* if it is a level of one; else NULL */
	struct sim_array *next;
};

struct sim_mipmap {
	struct sim_context *context;
	uint64_t taken;
	unsigned int levels;
	struct sim_array **level;
	struct sim_mipmap *next;
};

static struct sim_array *arrays; /* without levels of mipmaps */
static struct sim_mipmap *mipmaps;

static uint64_t shared_bytes[SIM_UNITS];

static CUresult take(uint32_t gpu, uint64_t bytes)
{
	if (bytes > SIM_MIB)
		return pages_take(gpu, pages_round(bytes, SIM_PAGE));
	uint64_t more = pages_round(shared_bytes[gpu] + bytes, SIM_PAGE) -
	                pages_round(shared_bytes[gpu], SIM_PAGE);
	if (more)
		SIM_TRY(pages_take(gpu, more));
	shared_bytes[gpu] += bytes;
	return CUDA_SUCCESS;
}

static void give(uint32_t gpu, uint64_t bytes)
{
	uint64_t less = pages_round(bytes, SIM_PAGE);
	if (bytes <= SIM_MIB) {
		less = pages_round(shared_bytes[gpu], SIM_PAGE) -
		       pages_round(shared_bytes[gpu] - bytes, SIM_PAGE);
		shared_bytes[gpu] -= bytes;
	}
	if (less)
		machine_give(&sim.machine, gpu, less);
}

/* Bits of an element, of any number of channels; 0: the format is not simulated. */
static size_t element_bits(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	size_t bits = 0;
	switch ((int)d->Format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		bits = 8;
		break;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		bits = 16;
		break;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		bits = 32;
		break;
	case CU_AD_FORMAT_BC1_UNORM:
		return d->NumChannels == 4 ? 4 : 0;
	case CU_AD_FORMAT_BC7_UNORM:
		return d->NumChannels == 4 ? 8 : 0;
	case CU_AD_FORMAT_NV12:
		return d->NumChannels == 3 ? 12 : 0;
	case CU_AD_FORMAT_UNORM_INT8X4:
		return d->NumChannels == 4 ? 32 : 0;
	}
	return d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4 ? bits * d->NumChannels
	                                                                         : 0;
}

static CUresult bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *d, uint64_t *size)
{
	size_t bits = element_bits(d);
	if (!bits || !d->Width)
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_mul_overflow(d->Width, bits, size) ||
	    __builtin_mul_overflow(*size, d->Height ? d->Height : 1, size) ||
	    __builtin_mul_overflow(*size, d->Depth ? d->Depth : 1, size) ||
	    *size / 8 > sim.machine.shape.memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*size = (*size + 7) / 8;
	return CUDA_SUCCESS;
}

/* Makes an array for which the caller has taken the memory; its end gives `taken` bytes back. */
static CUresult make(struct sim_context *context, const CUDA_ARRAY3D_DESCRIPTOR *d, uint64_t taken,
                     struct sim_array **out)
{
	uint64_t size;
	SIM_TRY(bytes_of(d, &size));
	size = pages_round(size, SIM_PAGE);
	struct sim_array *array = calloc(1, sizeof(*array));
	void *map = pages_map(size);
	if (!array || !map) {
		free(array);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*array = (struct sim_array){.descriptor = *d,
	                            .context = context,
	                            .base = (uint64_t)map,
	                            .size = size,
	                            .taken = taken,
	                            .pitch = (d->Width * element_bits(d) + 7) / 8,
	                            .height = d->Height ? d->Height : 1};
	struct sim_range range = {.base = array->base,
	                          .size = size,
	                          .memory = SIM_GLOBAL,
	                          .context = context,
	                          .gpu = context->gpu};
	range_add(&range);
	handle_add(array, SIM_ARRAY);
	*out = array;
	return CUDA_SUCCESS;
}

static void end(struct sim_array *array)
{
	handle_remove(array);
	range_remove(range_exact(array->base));
	pages_unmap(array->base, array->size);
	if (array->taken)
		give(array->context->gpu, array->taken);
	if (array->tiles)
		physical_drop(array->tiles);
	free(array);
}

static void end_mipmap(struct sim_mipmap *mipmap)
{
	for (unsigned int i = 0; i < mipmap->levels; i++)
		if (mipmap->level[i])
			end(mipmap->level[i]);
	handle_remove(mipmap);
	give(mipmap->context->gpu, mipmap->taken);
	free(mipmap->level);
	free(mipmap);
}

static void end_context(struct sim_context *context)
{
	for (struct sim_array **at = &arrays; *at;) {
		struct sim_array *array = *at;
		if (array->context != context) {
			at = &array->next;
			continue;
		}
		*at = array->next;
		end(array);
	}
	for (struct sim_mipmap **at = &mipmaps; *at;) {
		struct sim_mipmap *mipmap = *at;
		if (mipmap->context != context) {
			at = &mipmap->next;
			continue;
		}
		*at = mipmap->next;
		end_mipmap(mipmap);
	}
}

void array_place(CUarray handle, CUdeviceptr *base, size_t *pitch, size_t *height)
{
	const struct sim_array *array = (const struct sim_array *)handle;
	*base = array->base;
	*pitch = array->pitch;
	*height = array->height;
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	struct sim_array *array;
	if (!out || !d)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	uint64_t taken;
	SIM_TRY(bytes_of(d, &taken));
	if (d->Flags & CUDA_ARRAY3D_SPARSE)
		taken = 0;
	if (taken)
		SIM_TRY(take(context->gpu, taken));
	CUresult result = make(context, d, taken, &array);
	if (result) {
		if (taken)
			give(context->gpu, taken);
		return result;
	}
	context_at_end(CONTEXT_END_ARRAYS, end_context);
	array->next = arrays;
	arrays = array;
	*out = (CUarray)array;
	return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
	if (!d)
		return sim.state == SIM_READY ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
	CUDA_ARRAY3D_DESCRIPTOR full = {.Width = d->Width,
	                                .Height = d->Height,
	                                .Format = d->Format,
	                                .NumChannels = d->NumChannels};
	return cuArray3DCreate_v2(out, &full);
}

/* With 32 bits, as CUDA 3.1 had them. */

CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
	CUDA_ARRAY_DESCRIPTOR full;
	if (d)
		full = (CUDA_ARRAY_DESCRIPTOR){d->Width, d->Height, d->Format, d->NumChannels};
	return cuArrayCreate_v2(out, d ? &full : NULL);
}

CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
	CUDA_ARRAY3D_DESCRIPTOR full;
	if (d)
		full = (CUDA_ARRAY3D_DESCRIPTOR){d->Width,  d->Height,      d->Depth,
		                                 d->Format, d->NumChannels, d->Flags};
	return cuArray3DCreate_v2(out, d ? &full : NULL);
}

/* Only whole arrays: the memory that is mapped last is all that the array has. */
static CUresult map_tiles(const CUarrayMapInfo *info)
{
	struct sim_array *array = (struct sim_array *)info->resource.array;
	struct sim_physical *tiles = NULL;
	if (info->resourceType != CU_RESOURCE_TYPE_ARRAY || !handle_is(array, SIM_ARRAY) ||
	    !(array->descriptor.Flags & CUDA_ARRAY3D_SPARSE))
		return CUDA_ERROR_INVALID_VALUE;
	if (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
		tiles = physical_hold(info->memHandle.memHandle);
		if (!tiles)
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (array->tiles)
		physical_drop(array->tiles);
	array->tiles = tiles;
	return CUDA_SUCCESS;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	SIM_ENTER();
	(void)stream; /* at once */
	if (!list || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++)
		SIM_TRY(map_tiles(&list[i]));
	return CUDA_SUCCESS;
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return cuMemMapArrayAsync(list, count, stream);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray handle)
{
	SIM_ENTER();
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle_is(handle, SIM_ARRAY))
		return CUDA_ERROR_INVALID_HANDLE;
	*d = ((struct sim_array *)handle)->descriptor;
	return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *d, CUarray handle)
{
	CUDA_ARRAY3D_DESCRIPTOR full;
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(cuArray3DGetDescriptor_v2(&full, handle));
	*d = (CUDA_ARRAY_DESCRIPTOR){full.Width, full.Height, full.Format, full.NumChannels};
	return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray handle)
{
	SIM_ENTER();
	struct sim_array *array = (struct sim_array *)handle;
	if (!handle_is(handle, SIM_ARRAY) || array->mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	uint64_t base = array->base;
	SIM_TRY(context_wait(array->context));
	range_wait(base);
	struct sim_array **at = &arrays;
	while (*at && *at != array)
		at = &(*at)->next;
	if (!*at)
		return CUDA_ERROR_INVALID_HANDLE;
	*at = array->next;
	end(array);
	return CUDA_SUCCESS;
}

static size_t halved(size_t size, unsigned int level)
{
	return size ? (size >> level ? size >> level : 1) : 0;
}

static CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int level)
{
	CUDA_ARRAY3D_DESCRIPTOR own = *d;
	own.Width = halved(d->Width, level);
	own.Height = halved(d->Height, level);
	own.Depth = halved(d->Depth, level);
	return own;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d,
                                unsigned int levels)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!out || !d || !levels || levels > 32)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	uint64_t taken = 0, size;
	for (unsigned int i = 0; i < levels; i++) {
		CUDA_ARRAY3D_DESCRIPTOR own = level_of(d, i);
		SIM_TRY(bytes_of(&own, &size));
		taken += size;
	}
	SIM_TRY(take(context->gpu, taken));
	struct sim_mipmap *mipmap = calloc(1, sizeof(*mipmap));
	*mipmap = (struct sim_mipmap){.context = context, .levels = levels, .taken = taken};
	mipmap->level = calloc(levels, sizeof(*mipmap->level));
	for (unsigned int i = 0; i < levels; i++) {
		CUDA_ARRAY3D_DESCRIPTOR own = level_of(d, i);
		CUresult result = make(context, &own, 0, &mipmap->level[i]);
		if (result) {
			end_mipmap(mipmap);
			return result;
		}
		mipmap->level[i]->mipmap = mipmap;
	}
	context_at_end(CONTEXT_END_ARRAYS, end_context);
	mipmap->next = mipmaps;
	mipmaps = mipmap;
	handle_add(mipmap, SIM_MIPMAP);
	*out = (CUmipmappedArray)mipmap;
	return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned int level)
{
	SIM_ENTER();
	const struct sim_mipmap *mipmap = (const struct sim_mipmap *)handle;
	if (!handle_is(handle, SIM_MIPMAP))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || level >= mipmap->levels)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUarray)mipmap->level[level];
	return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
	SIM_ENTER();
	struct sim_mipmap *mipmap = (struct sim_mipmap *)handle;
	if (!handle_is(handle, SIM_MIPMAP))
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(context_wait(mipmap->context));
	for (unsigned int i = 0; handle_is(handle, SIM_MIPMAP) && i < mipmap->levels; i++)
		range_wait(mipmap->level[i]->base);
	struct sim_mipmap **at = &mipmaps;
	while (*at && *at != mipmap)
		at = &(*at)->next;
	if (!*at)
		return CUDA_ERROR_INVALID_HANDLE;
	*at = mipmap->next;
	end_mipmap(mipmap);
	return CUDA_SUCCESS;
}
