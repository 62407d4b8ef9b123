/* Contexts: primary contexts with their reference counts, and created ones.
 *
 * A context takes its share of device memory when it is made. When it ends, everything that was made
 * in it ends too (context_end.h). The structure of a destroyed context stays allocated, so that a
 * thread that still has it on its stack gets CONTEXT_IS_DESTROYED.
 */
#include "cuda/core/context_end.h"
#include "cuda/stream/stream.h"

#include <stdlib.h>
#include <string.h>

#define CONNECTIONS 8u

/* The number of hardware queues of a new context. */
static uint32_t connections(void)
{
	const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	long count = text ? strtol(text, NULL, 10) : 0;
	return count >= 1 && count <= SIM_MAX_QUEUES ? (uint32_t)count : CONNECTIONS;
}

/* Makes a context in the memory of `context`, or in new memory. A primary context that ended is made
 * again under the same handle, so a thread that has it on its stack can go on using it. */
static CUresult make(CUdevice device, uint32_t flags, struct sim_context *context,
                     struct sim_context **out)
{
	uint32_t gpu = sim.devices[device].gpu;
	SIM_TRY(pages_take(gpu, sim.machine.shape.context));
	if (!context) {
		context = calloc(1, sizeof(*context));
		if (!context) {
			machine_give(&sim.machine, gpu, sim.machine.shape.context);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		context->next = sim.contexts;
		sim.contexts = context;
	}
	struct sim_context *next = context->next;
	*context = (struct sim_context){.device = device,
	                                .gpu = gpu,
	                                .flags = flags,
	                                .api = 3020,
	                                .taken = sim.machine.shape.context,
	                                .id = ++sim.next_id,
	                                .live = true,
	                                .references = 1,
	                                .queue_count = connections(),
	                                .next = next};
	context->limits[CU_LIMIT_STACK_SIZE] = 1024;
	context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1048576;
	context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8388608;
	context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
	context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
	context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
	context->legacy = stream_make(context, 0, 0);
	if (!context->legacy) {
		context->live = false;
		machine_give(&sim.machine, gpu, sim.machine.shape.context);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	handle_add(context, SIM_CONTEXT);
	machine_count_contexts(&sim.machine, gpu, 1);
	*out = context;
	return CUDA_SUCCESS;
}

static void end(struct sim_context *context)
{
	context_run_end(context);
	handle_remove(context);
	context->live = false;
	machine_count_contexts(&sim.machine, context->gpu, -1);
	machine_give(&sim.machine, context->gpu, context->taken);
}

/* The device's primary context; NULL: it is not active. */
static struct sim_context *primary_of(CUdevice device)
{
	struct sim_context *primary = sim.devices[device].primary;
	return primary && primary->live ? primary : NULL;
}

static CUresult retain_primary(CUdevice device, struct sim_context **context)
{
	struct sim_device *d = &sim.devices[device];
	if (primary_of(device)) {
		d->primary->references++;
	} else {
		SIM_TRY(make(device, d->primary_flags, d->primary, &d->primary));
		d->primary->primary = true;
	}
	*context = d->primary;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
	SIM_ENTER();
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_DEVICE_CHECK(device);
	return retain_primary(device, (struct sim_context **)out);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	SIM_ENTER();
	SIM_DEVICE_CHECK(device);
	struct sim_context *primary = primary_of(device);
	if (!primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--primary->references == 0)
		end(primary);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	SIM_ENTER();
	SIM_DEVICE_CHECK(device);
	if (primary_of(device))
		end(primary_of(device));
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return cuDevicePrimaryCtxReset_v2(device);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
	SIM_ENTER();
	SIM_DEVICE_CHECK(device);
	if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	sim.devices[device].primary_flags = flags;
	if (primary_of(device))
		primary_of(device)->flags = flags;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	SIM_ENTER();
	SIM_DEVICE_CHECK(device);
	if (!flags && !active)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags)
		*flags = sim.devices[device].primary_flags;
	if (active)
		*active = primary_of(device) != NULL;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice device, uint32_t api)
{
	SIM_ENTER();
	struct sim_context *context;
	if (!out || flags & ~(unsigned)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_DEVICE_CHECK(device);
	SIM_TRY(make(device, flags, NULL, &context));
	context->api = api;
	*out = (CUcontext)context;
	return context_push(context);
}

CUresult cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice device)
{
	return create(out, flags, device, 3010);
}

CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
	return create(out, flags, device, 3020);
}

CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *params, int count, unsigned int flags,
                        CUdevice device)
{
	return params || count ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
	                       : create(out, flags, device, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned int flags,
                        CUdevice device)
{
	if (params && (params->execAffinityParams || params->cigParams))
		return CUDA_ERROR_NOT_SUPPORTED;
	return create(out, flags, device, 3020);
}

static CUresult destroy(CUcontext handle)
{
	struct sim_context *context = (struct sim_context *)handle;
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle_is(handle, SIM_CONTEXT) || context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	end(context);
	context_pop_if_top(context);
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext handle)
{
	SIM_ENTER();
	return destroy(handle);
}

CUresult cuCtxDestroy(CUcontext handle)
{
	return cuCtxDestroy_v2(handle);
}

CUresult cuCtxAttach(CUcontext *out, unsigned int flags)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	context->references++;
	*out = (CUcontext)context;
	return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext handle)
{
	SIM_ENTER();
	struct sim_context *context = (struct sim_context *)handle, *top;
	context_top(&top);
	if (!handle_is(handle, SIM_CONTEXT) || context != top)
		return CUDA_ERROR_INVALID_CONTEXT;
	return --context->references ? CUDA_SUCCESS : destroy(handle);
}
