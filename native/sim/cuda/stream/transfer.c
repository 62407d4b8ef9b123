/* Runs copies and fills, once their addresses are known. See copy.h. */
#include "cuda/stream/copy.h"

#include <string.h>

struct copy_side copy_source(const CUDA_MEMCPY3D *c)
{
	struct copy_side s = {c->srcMemoryType == CU_MEMORYTYPE_HOST ? (char *)c->srcHost
	                                                             : (char *)c->srcDevice,
	                      c->srcPitch, c->srcPitch * c->srcHeight};
	s.base += c->srcXInBytes + c->srcY * s.pitch + c->srcZ * s.plane;
	return s;
}

struct copy_side copy_target(const CUDA_MEMCPY3D *c)
{
	struct copy_side s = {c->dstMemoryType == CU_MEMORYTYPE_HOST ? (char *)c->dstHost
	                                                             : (char *)c->dstDevice,
	                      c->dstPitch, c->dstPitch * c->dstHeight};
	s.base += c->dstXInBytes + c->dstY * s.pitch + c->dstZ * s.plane;
	return s;
}

uint64_t copy_extent(const struct copy_side *s, const CUDA_MEMCPY3D *c)
{
	return (c->Depth - 1) * s->plane + (c->Height - 1) * s->pitch + c->WidthInBytes;
}

uint64_t fill_extent(const CUDA_MEMSET_NODE_PARAMS *s)
{
	return (s->height - 1) * s->pitch + (uint64_t)s->width * s->elementSize;
}

void copy_run(const CUDA_MEMCPY3D *c)
{
	struct copy_side from = copy_source(c), to = copy_target(c);
	for (size_t z = 0; z < c->Depth; z++)
		for (size_t y = 0; y < c->Height; y++)
			memmove(to.base + z * to.plane + y * to.pitch,
			        from.base + z * from.plane + y * from.pitch, c->WidthInBytes);
}

void fill_run(const CUDA_MEMSET_NODE_PARAMS *s)
{
	for (size_t y = 0; y < s->height; y++) {
		char *row = (char *)s->dst + y * s->pitch;
		if (s->elementSize == 1) {
			memset(row, (int)s->value, s->width);
			continue;
		}
		for (size_t x = 0; x < s->width; x++)
			memcpy(row + x * s->elementSize, &s->value, s->elementSize);
	}
}
