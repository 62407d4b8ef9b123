/* The calls that fill memory: launches whose cost goes by the bytes they fill. */
#include "gate/gate.h"

static const char fill; /* its address gives a key that no function has */

/* FILL and FILL_2D: in the current context's default stream, legacy or per-thread. *_ASYNC: in any
 * stream. */
#define FILL(name, real_name, per_thread, address, value, size)                                    \
	CUresult name(__typeof__(&real_name) real, address pointer, value filling, size count)         \
	{                                                                                              \
		GATED(NULL, per_thread, cost_key(&fill, (uint64_t)count * sizeof(filling)), false,         \
		      real(pointer, filling, count));                                                      \
	}

#define FILL_2D(name, real_name, per_thread, address, value, size)                                 \
	CUresult name(__typeof__(&real_name) real, address pointer, size pitch, value filling,         \
	              size width, size height)                                                         \
	{                                                                                              \
		GATED(NULL, per_thread, cost_key(&fill, (uint64_t)width * height * sizeof(filling)),       \
		      false, real(pointer, pitch, filling, width, height));                                \
	}

#define FILL_ASYNC(name, real_name, per_thread, value)                                             \
	CUresult name(__typeof__(&real_name) real, CUdeviceptr pointer, value filling, size_t count,   \
	              CUstream stream)                                                                 \
	{                                                                                              \
		GATED(stream, per_thread, cost_key(&fill, count * sizeof(filling)), false,                 \
		      real(pointer, filling, count, stream));                                              \
	}

#define FILL_2D_ASYNC(name, real_name, per_thread, value)                                          \
	CUresult name(__typeof__(&real_name) real, CUdeviceptr pointer, size_t pitch, value filling,   \
	              size_t width, size_t height, CUstream stream)                                    \
	{                                                                                              \
		GATED(stream, per_thread, cost_key(&fill, width * height * sizeof(filling)), false,        \
		      real(pointer, pitch, filling, width, height, stream));                               \
	}

FILL(hook_fill8_v1, cuMemsetD8, false, CUdeviceptr_v1, unsigned char, unsigned)
FILL(hook_fill16_v1, cuMemsetD16, false, CUdeviceptr_v1, unsigned short, unsigned)
FILL(hook_fill32_v1, cuMemsetD32, false, CUdeviceptr_v1, unsigned, unsigned)
FILL(hook_fill8, cuMemsetD8_v2, false, CUdeviceptr, unsigned char, size_t)
FILL(hook_fill16, cuMemsetD16_v2, false, CUdeviceptr, unsigned short, size_t)
FILL(hook_fill32, cuMemsetD32_v2, false, CUdeviceptr, unsigned, size_t)
FILL(hook_fill8_ptds, cuMemsetD8_v2, true, CUdeviceptr, unsigned char, size_t)
FILL(hook_fill16_ptds, cuMemsetD16_v2, true, CUdeviceptr, unsigned short, size_t)
FILL(hook_fill32_ptds, cuMemsetD32_v2, true, CUdeviceptr, unsigned, size_t)

FILL_2D(hook_fill8_2d_v1, cuMemsetD2D8, false, CUdeviceptr_v1, unsigned char, unsigned)
FILL_2D(hook_fill16_2d_v1, cuMemsetD2D16, false, CUdeviceptr_v1, unsigned short, unsigned)
FILL_2D(hook_fill32_2d_v1, cuMemsetD2D32, false, CUdeviceptr_v1, unsigned, unsigned)
FILL_2D(hook_fill8_2d, cuMemsetD2D8_v2, false, CUdeviceptr, unsigned char, size_t)
FILL_2D(hook_fill16_2d, cuMemsetD2D16_v2, false, CUdeviceptr, unsigned short, size_t)
FILL_2D(hook_fill32_2d, cuMemsetD2D32_v2, false, CUdeviceptr, unsigned, size_t)
FILL_2D(hook_fill8_2d_ptds, cuMemsetD2D8_v2, true, CUdeviceptr, unsigned char, size_t)
FILL_2D(hook_fill16_2d_ptds, cuMemsetD2D16_v2, true, CUdeviceptr, unsigned short, size_t)
FILL_2D(hook_fill32_2d_ptds, cuMemsetD2D32_v2, true, CUdeviceptr, unsigned, size_t)

FILL_ASYNC(hook_fill8_async, cuMemsetD8Async, false, unsigned char)
FILL_ASYNC(hook_fill16_async, cuMemsetD16Async, false, unsigned short)
FILL_ASYNC(hook_fill32_async, cuMemsetD32Async, false, unsigned)
FILL_ASYNC(hook_fill8_async_ptsz, cuMemsetD8Async, true, unsigned char)
FILL_ASYNC(hook_fill16_async_ptsz, cuMemsetD16Async, true, unsigned short)
FILL_ASYNC(hook_fill32_async_ptsz, cuMemsetD32Async, true, unsigned)

FILL_2D_ASYNC(hook_fill8_2d_async, cuMemsetD2D8Async, false, unsigned char)
FILL_2D_ASYNC(hook_fill16_2d_async, cuMemsetD2D16Async, false, unsigned short)
FILL_2D_ASYNC(hook_fill32_2d_async, cuMemsetD2D32Async, false, unsigned)
FILL_2D_ASYNC(hook_fill8_2d_async_ptsz, cuMemsetD2D8Async, true, unsigned char)
FILL_2D_ASYNC(hook_fill16_2d_async_ptsz, cuMemsetD2D16Async, true, unsigned short)
FILL_2D_ASYNC(hook_fill32_2d_async_ptsz, cuMemsetD2D32Async, true, unsigned)
