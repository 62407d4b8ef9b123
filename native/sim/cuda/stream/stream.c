/* Streams: creation, handles, end. See stream.h. */
#include "cuda/stream/stream.h"

#include "cuda/core/context_end.h"
#include "cuda/graph/capture.h"

#include <stdlib.h>

#define PRIORITY_GREATEST (-5)

/* Frees destroyed streams without remaining work or waiters. */
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

static void end_context(struct sim_context *context)
{
	context_drain(context);
	for (struct sim_stream *s = context->streams; s; s = s->next)
		if (s->live)
			forget(s);
	sweep(context);
	context->legacy = NULL;
}

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
	context_at_end(CONTEXT_END_STREAMS, end_context);
	return stream;
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
