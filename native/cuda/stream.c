/* The calls that create and destroy streams and green contexts. */
#include "gate/gate.h"

static CUresult created(CUresult result, unsigned flags)
{
	if (result == CUDA_SUCCESS && !(flags & CU_STREAM_NON_BLOCKING))
		gate_blocking_stream_created();
	return result;
}

CUresult hook_stream_create(__typeof__(&cuStreamCreate) real, CUstream *stream, unsigned flags)
{
	return created(real(stream, flags), flags);
}

CUresult hook_stream_create_with_priority(__typeof__(&cuStreamCreateWithPriority) real,
                                          CUstream *stream, unsigned flags, int priority)
{
	return created(real(stream, flags, priority), flags);
}

/* The gates must forget the stream first: the driver may give its handle to another thread at once.
 */
CUresult hook_stream_destroy(__typeof__(&cuStreamDestroy_v2) real, CUstream stream)
{
	gate_stream_ending(stream);
	return real(stream);
}

CUresult hook_green_destroy(__typeof__(&cuGreenCtxDestroy) real, CUgreenCtx green)
{
	CUcontext context = NULL;
	if (!green || !REAL(cuCtxFromGreenCtx) ||
	    REAL(cuCtxFromGreenCtx)(&context, green) != CUDA_SUCCESS)
		return real(green);
	gate_context_ending(context);
	CUresult result = real(green);
	gate_context_ended(context, result == CUDA_SUCCESS);
	return result;
}
