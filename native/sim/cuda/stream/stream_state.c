/* Properties of a stream, and waiting for it. */
#include "cuda/graph/capture.h"
#include "cuda/memory/pool.h"
#include "cuda/stream/stream.h"

CUresult cuStreamQuery(CUstream handle)
{
	SIM_ENTER_QUERY(sim_crash(__func__));
	struct sim_stream *stream;
	SIM_TRY(stream_get(handle, &stream));
	SIM_TRY(capture_check_sync(stream));
	return stream_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle)
{
	SIM_ENTER_QUERY(sim_crash(__func__));
	struct sim_stream *stream;
	SIM_TRY(stream_get(handle, &stream));
	SIM_TRY(capture_check_sync(stream));
	struct sim_context *context = stream->context;
	SIM_TRY(stream_wait(stream));
	pool_trim(context->gpu);
	return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(handle, &stream));
	*priority = stream->priority;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(handle, &stream));
	*flags = stream->flags;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(handle, &stream));
	*id = stream->id;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(handle, &stream));
	*context = (CUcontext)stream->context;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
	if (!green)
		return CUDA_ERROR_INVALID_VALUE;
	*green = NULL;
	return cuStreamGetCtx(handle, context);
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(handle, &stream));
	*device = stream->context->device;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(handle, &stream));
	switch ((int)attribute) {
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		value->syncPolicy = CU_SYNC_POLICY_AUTO;
		break;
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
		value->priority = stream->priority;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
                              const CUstreamAttrValue *value)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(handle, &stream));
	if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
		stream->priority = value->priority;
	return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
	SIM_ENTER();
	struct sim_stream *target, *source;
	SIM_TRY(stream_get(to, &target));
	SIM_TRY(stream_get(from, &source));
	target->priority = source->priority;
	return CUDA_SUCCESS;
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t length,
                                unsigned int flags)
{
	SIM_ENTER();
	struct sim_stream *stream;
	(void)length;
	(void)flags;
	SIM_TRY(stream_get(handle, &stream));
	const struct sim_range *range = range_find(address);
	return range && range->memory == SIM_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
