/* Checks copies and fills, and submits them to streams. See copy.h. */
#include "cuda/stream/copy.h"

#include "cuda/graph/capture.h"

#include <string.h>
#include <sys/mman.h>

/* The driver reads pageable memory at submission for copies up to this size. */
#define STAGE_MAX (64u << 10)

/* Replaces an array by its plain address, and a missing pitch or height by that of the copy. */
static CUresult place(CUmemorytype *type, const void **host, CUdeviceptr *device, CUarray array,
                      size_t *pitch, size_t *height, const CUDA_MEMCPY3D *c)
{
	if (*type == CU_MEMORYTYPE_ARRAY) {
		if (!handle_is(array, SIM_ARRAY))
			return CUDA_ERROR_INVALID_HANDLE;
		array_place(array, device, pitch, height);
		*type = CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	}
	if (*type == CU_MEMORYTYPE_UNIFIED) {
		const struct sim_range *range = range_find(*device);
		bool pageable = !range || range->memory == SIM_HOST || range->memory == SIM_REGISTERED;
		*type = pageable ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		*host = (const void *)*device;
	}
	if (*type != CU_MEMORYTYPE_HOST && *type != CU_MEMORYTYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!*pitch)
		*pitch = c->WidthInBytes;
	if (!*height)
		*height = c->Height;
	return *pitch < c->WidthInBytes && c->Height > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static bool known(const struct copy_side *s, CUmemorytype type, const CUDA_MEMCPY3D *c, int access)
{
	if (type == CU_MEMORYTYPE_HOST)
		return s->base != NULL;
	return range_covers((uint64_t)s->base, copy_extent(s, c), access);
}

CUresult copy_place(CUDA_MEMCPY3D *c)
{
	const void *to_host = c->dstHost;
	SIM_TRY(place(&c->srcMemoryType, &c->srcHost, &c->srcDevice, c->srcArray, &c->srcPitch,
	              &c->srcHeight, c));
	SIM_TRY(place(&c->dstMemoryType, &to_host, &c->dstDevice, c->dstArray, &c->dstPitch,
	              &c->dstHeight, c));
	c->dstHost = (void *)to_host;
	if (!c->WidthInBytes || !c->Height || !c->Depth)
		return CUDA_SUCCESS;
	struct copy_side from = copy_source(c), to = copy_target(c);
	bool valid = known(&from, c->srcMemoryType, c, PROT_READ) &&
	             known(&to, c->dstMemoryType, c, PROT_WRITE);
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool pageable(CUmemorytype type, const void *host)
{
	return type == CU_MEMORYTYPE_HOST && !range_find((uint64_t)host);
}

/* Reads a small pageable source now. False: a pageable side is left, so the caller must wait. */
static bool stage(struct sim_op *op)
{
	CUDA_MEMCPY3D *c = &op->copy;
	if (pageable(c->dstMemoryType, c->dstHost))
		return false;
	if (!pageable(c->srcMemoryType, c->srcHost))
		return true;
	if (c->Height != 1 || c->Depth != 1 || c->WidthInBytes > STAGE_MAX)
		return false;
	op->staged = malloc(c->WidthInBytes);
	if (!op->staged)
		return false;
	memcpy(op->staged, copy_source(c).base, c->WidthInBytes);
	c->srcHost = op->staged;
	c->srcXInBytes = c->srcY = c->srcZ = 0;
	return true;
}

CUresult copy_submit(CUDA_MEMCPY3D copy, CUstream handle, bool wait)
{
	struct sim_stream *stream;
	SIM_TRY(stream_get(handle, &stream));
	struct sim_op op = {.kind = SIM_OP_COPY, .copy = copy};
	SIM_TRY(copy_place(&op.copy));
	if (!op.copy.WidthInBytes || !op.copy.Height || !op.copy.Depth)
		return CUDA_SUCCESS;
	if (stream->capture)
		return wait ? capture_check_sync(stream) : stream_submit(stream, &op);
	if (wait)
		SIM_TRY(capture_check_unsafe());
	if (!wait && stream_idle(stream) == false)
		wait = !stage(&op);
	else if (!wait)
		wait = pageable(op.copy.dstMemoryType, op.copy.dstHost) ||
		       pageable(op.copy.srcMemoryType, op.copy.srcHost);
	SIM_TRY(stream_submit(stream, &op));
	return wait ? stream_wait(stream) : CUDA_SUCCESS;
}

CUresult fill_check(const CUDA_MEMSET_NODE_PARAMS *set)
{
	uint64_t row = (uint64_t)set->width * set->elementSize;
	bool valid = set->dst % set->elementSize == 0 && (set->height == 1 || set->pitch >= row) &&
	             range_covers(set->dst, fill_extent(set), PROT_WRITE);
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fill_submit(CUdeviceptr to, size_t pitch, uint32_t value, uint32_t element, size_t width,
                     size_t height, CUstream handle)
{
	SIM_ENTER();
	struct sim_stream *stream;
	SIM_TRY(stream_get(handle, &stream));
	if (!width || !height)
		return CUDA_SUCCESS;
	struct sim_op op = {.kind = SIM_OP_FILL};
	op.fill = (CUDA_MEMSET_NODE_PARAMS){.dst = to,
	                                    .pitch = pitch,
	                                    .value = value,
	                                    .elementSize = element,
	                                    .width = width,
	                                    .height = height};
	SIM_TRY(fill_check(&op.fill));
	return stream_submit(stream, &op);
}
