/* The entry points of copies of one, two and three dimensions. What they do is in copy.c. */
#include "cuda/stream/copy.h"

#include <string.h>

enum place {
	HOST = CU_MEMORYTYPE_HOST,
	DEVICE = CU_MEMORYTYPE_DEVICE,
	ANY = CU_MEMORYTYPE_UNIFIED
};

/* A copy of one row between two plain addresses. */
static CUresult linear(uint64_t to, enum place to_place, uint64_t from, enum place from_place,
                       size_t size, CUstream stream, bool wait)
{
	SIM_ENTER();
	CUDA_MEMCPY3D copy = {.srcMemoryType = (CUmemorytype)from_place,
	                      .srcHost = (const void *)from,
	                      .srcDevice = from,
	                      .dstMemoryType = (CUmemorytype)to_place,
	                      .dstHost = (void *)to,
	                      .dstDevice = to,
	                      .WidthInBytes = size,
	                      .Height = 1,
	                      .Depth = 1};
	return copy_submit(copy, stream, wait);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	return linear(to, ANY, from, ANY, size, NULL, true);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	return linear(to, ANY, from, ANY, size, stream, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	return linear(to, DEVICE, (uint64_t)from, HOST, size, NULL, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
	return linear(to, DEVICE, (uint64_t)from, HOST, size, stream, false);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
	return linear((uint64_t)to, HOST, from, DEVICE, size, NULL, true);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	return linear((uint64_t)to, HOST, from, DEVICE, size, stream, false);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	return linear(to, DEVICE, from, DEVICE, size, NULL, true);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	return linear(to, DEVICE, from, DEVICE, size, stream, false);
}

/* A copy between two contexts. All addresses belong to the process, so the contexts are only checked. */
static CUresult peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                     size_t size, CUstream stream, bool wait)
{
	{
		SIM_ENTER();
		if (!handle_is(to_context, SIM_CONTEXT) || !handle_is(from_context, SIM_CONTEXT))
			return CUDA_ERROR_INVALID_CONTEXT;
	}
	return linear(to, DEVICE, from, DEVICE, size, stream, wait);
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t size)
{
	return peer(to, to_context, from, from_context, size, NULL, true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t size, CUstream stream)
{
	return peer(to, to_context, from, from_context, size, stream, false);
}

static CUresult flat(const CUDA_MEMCPY2D *c, CUstream stream, bool wait)
{
	SIM_ENTER();
	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_MEMCPY3D copy = {.srcXInBytes = c->srcXInBytes,
	                      .srcY = c->srcY,
	                      .srcMemoryType = c->srcMemoryType,
	                      .srcHost = c->srcHost,
	                      .srcDevice = c->srcDevice,
	                      .srcArray = c->srcArray,
	                      .srcPitch = c->srcPitch,
	                      .dstXInBytes = c->dstXInBytes,
	                      .dstY = c->dstY,
	                      .dstMemoryType = c->dstMemoryType,
	                      .dstHost = c->dstHost,
	                      .dstDevice = c->dstDevice,
	                      .dstArray = c->dstArray,
	                      .dstPitch = c->dstPitch,
	                      .WidthInBytes = c->WidthInBytes,
	                      .Height = c->Height,
	                      .Depth = 1};
	return copy_submit(copy, stream, wait);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
	return flat(copy, NULL, true);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
	return flat(copy, NULL, true);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	return flat(copy, stream, false);
}

static CUresult solid(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait)
{
	SIM_ENTER();
	return copy ? copy_submit(*copy, stream, wait) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
	return solid(copy, NULL, true);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream)
{
	return solid(copy, stream, false);
}

/* CUDA_MEMCPY3D_PEER is CUDA_MEMCPY3D with contexts in place of reserved members. */
static CUresult solid_peer(const CUDA_MEMCPY3D_PEER *c, CUstream stream, bool wait)
{
	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_MEMCPY3D copy = {.srcXInBytes = c->srcXInBytes,
	                      .srcY = c->srcY,
	                      .srcZ = c->srcZ,
	                      .srcMemoryType = c->srcMemoryType,
	                      .srcHost = c->srcHost,
	                      .srcDevice = c->srcDevice,
	                      .srcArray = c->srcArray,
	                      .srcPitch = c->srcPitch,
	                      .srcHeight = c->srcHeight,
	                      .dstXInBytes = c->dstXInBytes,
	                      .dstY = c->dstY,
	                      .dstZ = c->dstZ,
	                      .dstMemoryType = c->dstMemoryType,
	                      .dstHost = c->dstHost,
	                      .dstDevice = c->dstDevice,
	                      .dstArray = c->dstArray,
	                      .dstPitch = c->dstPitch,
	                      .dstHeight = c->dstHeight,
	                      .WidthInBytes = c->WidthInBytes,
	                      .Height = c->Height,
	                      .Depth = c->Depth};
	return solid(&copy, stream, wait);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *copy)
{
	return solid_peer(copy, NULL, true);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)
{
	return solid_peer(copy, stream, false);
}

/* A copy of one row between an array and plain memory or another array. */
static CUresult row(CUarray to, uint64_t to_address, enum place to_place, size_t to_offset,
                    CUarray from, uint64_t from_address, enum place from_place, size_t from_offset,
                    size_t size, CUstream stream, bool wait)
{
	SIM_ENTER();
	CUDA_MEMCPY3D copy = {.srcXInBytes = from_offset,
	                      .srcMemoryType = from ? CU_MEMORYTYPE_ARRAY : (CUmemorytype)from_place,
	                      .srcHost = (const void *)from_address,
	                      .srcDevice = from_address,
	                      .srcArray = from,
	                      .dstXInBytes = to_offset,
	                      .dstMemoryType = to ? CU_MEMORYTYPE_ARRAY : (CUmemorytype)to_place,
	                      .dstHost = (void *)to_address,
	                      .dstDevice = to_address,
	                      .dstArray = to,
	                      .WidthInBytes = size,
	                      .Height = 1,
	                      .Depth = 1};
	return copy_submit(copy, stream, wait);
}

CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t size)
{
	return row(to, 0, ANY, offset, NULL, from, DEVICE, 0, size, NULL, true);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t size)
{
	return row(NULL, to, DEVICE, 0, from, 0, ANY, offset, size, NULL, true);
}

CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t size)
{
	return row(to, 0, ANY, offset, NULL, (uint64_t)from, HOST, 0, size, NULL, true);
}

CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t size)
{
	return row(NULL, (uint64_t)to, HOST, 0, from, 0, ANY, offset, size, NULL, true);
}

CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                         size_t size)
{
	return row(to, 0, ANY, to_offset, from, 0, ANY, from_offset, size, NULL, true);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t size,
                              CUstream stream)
{
	return row(to, 0, ANY, offset, NULL, (uint64_t)from, HOST, 0, size, stream, false);
}

CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t size, CUstream stream)
{
	return row(NULL, (uint64_t)to, HOST, 0, from, 0, ANY, offset, size, stream, false);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *indices,
                               size_t attribute_count, CUstream stream)
{
	(void)attributes;
	(void)indices;
	(void)attribute_count;
	if (!to || !from || !sizes || !count || !stream)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		SIM_TRY(linear(to[i], ANY, from[i], ANY, sizes[i], stream, false));
	return CUDA_SUCCESS;
}
