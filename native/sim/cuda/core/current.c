/* Each thread's stack of contexts; the top one is current. */
#include "cuda/core/sim.h"

#define DEPTH 64

static __thread struct {
	struct sim_context *stack[DEPTH];
	int depth;
} thread;

static struct sim_context *top(void)
{
	return thread.depth ? thread.stack[thread.depth - 1] : NULL;
}

CUresult context_top(struct sim_context **context)
{
	*context = top();
	if (!*context)
		return CUDA_ERROR_INVALID_CONTEXT;
	return (*context)->live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult context_current(struct sim_context **context)
{
	SIM_TRY(context_top(context));
	return (*context)->fault;
}

CUresult context_get(CUcontext handle, struct sim_context **context)
{
	if (!handle)
		return context_current(context);
	*context = (struct sim_context *)handle;
	return handle_is(handle, SIM_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult context_push(struct sim_context *context)
{
	if (thread.depth == DEPTH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	thread.stack[thread.depth++] = context;
	return CUDA_SUCCESS;
}

void context_pop_if_top(const struct sim_context *context)
{
	if (top() == context)
		thread.depth--;
}

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
	SIM_ENTER();
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle_is(handle, SIM_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	return context_push((struct sim_context *)handle);
}

CUresult cuCtxPushCurrent(CUcontext handle)
{
	return cuCtxPushCurrent_v2(handle);
}

CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	SIM_ENTER();
	if (!thread.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	struct sim_context *context = thread.stack[--thread.depth];
	if (out)
		*out = (CUcontext)context;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *out)
{
	return cuCtxPopCurrent_v2(out);
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
	SIM_ENTER();
	if (handle && !handle_is(handle, SIM_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (thread.depth)
		thread.depth--;
	return handle ? context_push((struct sim_context *)handle) : CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
	SIM_ENTER();
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUcontext)top();
	return CUDA_SUCCESS;
}
