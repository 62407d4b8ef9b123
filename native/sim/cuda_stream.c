/* Streams as objects: made, found, asked, ended. */
#include "cuda_stream.h"

#include <stdlib.h>

#define PRIORITY_GREATEST (-5)

struct sim_stream *stream_make(struct sim_context *context, uint32_t flags, int priority)
{
	struct sim_stream *stream = calloc(1, sizeof(*stream));
	if (!stream)
		return NULL;
	stream->context = context;
	stream->flags = flags;
	stream->priority = priority;
	stream->queue = context->next_queue++ % context->queue_count;
	stream->id = ++sim.next_id;
	stream->live = true;
	stream->next = context->streams;
	context->streams = stream;
	handle_add(stream, SIM_STREAM);
	return stream;
}

/* Frees destroyed streams that have nothing left to do. */
static void sweep(struct sim_context *context)
{
	for (struct sim_stream **at = &context->streams; *at;) {
		struct sim_stream *stream = *at;
		if (stream->live || stream->head || stream->busy || stream->waiters) {
			at = &stream->next;
			continue;
		}
		*at = stream->next;
		free(stream);
	}
}

static void forget(struct sim_stream *stream)
{
	capture_abandon(stream);
	handle_remove(stream);
	stream->live = false;
}

void stream_end_context(struct sim_context *context)
{
	context_drain(context);
	for (struct sim_stream *s = context->streams; s; s = s->next)
		if (s->live)
			forget(s);
	sweep(context);
	context->legacy = NULL;
}

static CUresult per_thread_stream(struct sim_context *context, struct sim_stream **stream)
{
	for (struct sim_stream *s = context->streams; s; s = s->next)
		if (s->per_thread && pthread_equal(s->thread, pthread_self())) {
			*stream = s;
			return CUDA_SUCCESS;
		}
	*stream = stream_make(context, 0, 0);
	if (!*stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*stream)->per_thread = true;
	(*stream)->thread = pthread_self();
	return CUDA_SUCCESS;
}

CUresult stream_get(CUstream handle, struct sim_stream **stream)
{
	if ((uintptr_t)handle > 2) {
		*stream = (struct sim_stream *)handle;
		if (!handle_is(handle, SIM_STREAM))
			return CUDA_ERROR_INVALID_HANDLE;
		return (*stream)->context->fault;
	}
	SIM_CURRENT(context);
	if (handle == CU_STREAM_PER_THREAD || (!handle && sim_per_thread()))
		return per_thread_stream(context, stream);
	*stream = context->legacy;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!out || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (priority > 0)
		priority = 0;
	if (priority < PRIORITY_GREATEST)
		priority = PRIORITY_GREATEST;
	sweep(context);
	*out = (CUstream)stream_make(context, flags, priority);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	return cuStreamCreateWithPriority(out, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
	SIM_ENTER();
	struct sim_stream *stream = (struct sim_stream *)handle;
	if (!handle_is(handle, SIM_STREAM) || stream == stream->context->legacy)
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(stream->context->fault);
	forget(stream);
	sweep(stream->context);
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle)
{
	return cuStreamDestroy_v2(handle);
}

CUresult cuStreamQuery(CUstream handle)
{
	SIM_LOOK(sim_crash(__func__));
	struct sim_stream *stream;
	SIM_TRY(stream_get(handle, &stream));
	SIM_TRY(capture_refuses_sync(stream));
	return stream_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle)
{
	SIM_LOOK(sim_crash(__func__));
	struct sim_stream *stream;
	SIM_TRY(stream_get(handle, &stream));
	SIM_TRY(capture_refuses_sync(stream));
	struct sim_context *context = stream->context;
	SIM_TRY(stream_wait(stream));
	pool_settle(context->gpu);
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
