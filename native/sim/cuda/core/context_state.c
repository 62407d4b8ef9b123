/* Properties of a context: device, limits, flags, peers; and waiting for it. */
#include "cuda/graph/capture.h"
#include "cuda/memory/pool.h"
#include "cuda/stream/stream.h"

CUresult cuCtxGetDevice(CUdevice *device)
{
	SIM_ENTER();
	struct sim_context *context;
	SIM_TRY(context_top(&context));
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = context->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext handle)
{
	SIM_ENTER();
	struct sim_context *context;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(context_get(handle, &context));
	*device = context->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	SIM_ENTER();
	struct sim_context *context;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(context_get(handle, &context));
	*id = context->id;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
	SIM_ENTER();
	struct sim_context *context;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(context_get(handle, &context));
	*version = context->api;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	context->flags = flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!value || limit >= CU_LIMIT_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*value = context->limits[limit];
	return CUDA_SUCCESS;
}

/* The driver keeps a stack for every thread that the GPU can run at once, and takes or gives back the
 * difference at once (seen on an H200). */
static CUresult resize_stacks(struct sim_context *context, uint64_t size)
{
	uint64_t threads = (uint64_t)machine_sms(&sim.machine, context->gpu) * device_threads();
	uint64_t before = context->limits[CU_LIMIT_STACK_SIZE];
	if (size > before && !machine_take(&sim.machine, context->gpu, (size - before) * threads))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (size < before)
		machine_give(&sim.machine, context->gpu, (before - size) * threads);
	context->taken += (size - before) * threads;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (limit >= CU_LIMIT_MAX)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	if (limit == CU_LIMIT_STACK_SIZE)
		SIM_TRY(resize_stacks(context, value));
	context->limits[limit] = value;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = context->cache;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	context->cache = config;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	context->shared_config = config;
	return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

static CUresult synchronise(struct sim_context *context)
{
	SIM_TRY(capture_check_unsafe());
	SIM_TRY(context_wait(context));
	pool_trim(context->gpu);
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	SIM_ENTER_QUERY(sim_crash(__func__));
	SIM_CURRENT(context);
	return synchronise(context);
}

CUresult cuCtxSynchronize_v2(CUcontext handle)
{
	SIM_ENTER_QUERY(sim_crash(__func__));
	struct sim_context *context;
	SIM_TRY(context_get(handle, &context));
	return synchronise(context);
}

static CUresult peer(CUcontext handle)
{
	SIM_CURRENT(context);
	struct sim_context *other = (struct sim_context *)handle;
	if (!handle_is(handle, SIM_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	bool linked = machine_linked(&sim.machine, context->gpu, other->gpu);
	return linked ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
	SIM_ENTER();
	return flags ? CUDA_ERROR_INVALID_VALUE : peer(handle);
}

CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
	SIM_ENTER();
	return peer(handle);
}

/* cudaProfiler.h declares these; the packages with cuda.h do not include it. */
#pragma GCC visibility push(default)
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
#pragma GCC visibility pop

CUresult cuProfilerStart(void)
{
	SIM_ENTER();
	return CUDA_SUCCESS;
}

CUresult cuProfilerStop(void)
{
	SIM_ENTER();
	return CUDA_SUCCESS;
}
