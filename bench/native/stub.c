/* A driver that does nothing, as quickly as can be: what is left is the cost of the way to it. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT CUresult cuInit(unsigned flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

/* The grant's GPU: STUB_UUID in 32 hex digits. */
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	(void)device;
	const char *text = getenv("STUB_UUID");
	for (unsigned i = 0; text && strlen(text) == 32 && i < 16; i++) {
		char digits[3] = {text[2 * i], text[2 * i + 1], 0};
		uuid->bytes[i] = (char)strtol(digits, NULL, 16);
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	(void)attribute, (void)device;
	*value = 1;
	return CUDA_SUCCESS;
}

/* One context, always current, and one stream in it. */
#define CONTEXT ((CUcontext)(uintptr_t)0x1000)
#define STREAM ((CUstream)(uintptr_t)0x3000)

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	(void)flags, (void)device;
	*context = CONTEXT;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = CONTEXT;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	(void)flags;
	*stream = STREAM;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	(void)stream;
	*context = CONTEXT;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned *flags)
{
	*flags = stream == STREAM ? CU_STREAM_NON_BLOCKING : 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
	*id = (uintptr_t)stream;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	(void)stream;
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	*mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
	(void)pointer, (void)bytes, (void)flags;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned flags)
{
	(void)flags;
	*device = (CUdeviceptr)(uintptr_t)pointer;
	return CUDA_SUCCESS;
}

/* Work takes no time here: a wait is over at once, and a mark is reached when it is asked for. */
EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                       unsigned flags)
{
	(void)stream, (void)address, (void)value, (void)flags;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                        unsigned flags)
{
	(void)stream, (void)flags;
	*(volatile cuuint64_t *)(uintptr_t)address = value;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	static CUdeviceptr next = 0x700000000000;
	*pointer = next += bytes;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	(void)pointer;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                               unsigned bx, unsigned by, unsigned bz, unsigned shared,
                               CUstream stream, void **parameters, void **extra)
{
	(void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
	(void)shared, (void)stream, (void)parameters, (void)extra;
	return CUDA_SUCCESS;
}
