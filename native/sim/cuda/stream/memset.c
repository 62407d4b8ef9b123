/* The entry points of fills. What they do is in copy.c. */
#include "cuda/stream/copy.h"

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
	return fill_submit(to, 0, value, 1, count, 1, NULL);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
	return fill_submit(to, 0, value, 1, count, 1, stream);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                         size_t height)
{
	return fill_submit(to, pitch, value, 1, width, height, NULL);
}

CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                           size_t height, CUstream stream)
{
	return fill_submit(to, pitch, value, 1, width, height, stream);
}

CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count)
{
	return fill_submit(to, 0, value, 2, count, 1, NULL);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
	return fill_submit(to, 0, value, 2, count, 1, stream);
}

CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                          size_t height)
{
	return fill_submit(to, pitch, value, 2, width, height, NULL);
}

CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                            size_t height, CUstream stream)
{
	return fill_submit(to, pitch, value, 2, width, height, stream);
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count)
{
	return fill_submit(to, 0, value, 4, count, 1, NULL);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
	return fill_submit(to, 0, value, 4, count, 1, stream);
}

CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                          size_t height)
{
	return fill_submit(to, pitch, value, 4, width, height, NULL);
}

CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                            size_t height, CUstream stream)
{
	return fill_submit(to, pitch, value, 4, width, height, stream);
}
