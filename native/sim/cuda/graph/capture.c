/* Captures: what they record and what they forbid. See capture.h. */
#include "cuda/graph/capture.h"

#include "cuda/graph/graph.h"

#include <stdlib.h>
#include <string.h>

static struct sim_capture *captures;
static __thread CUstreamCaptureMode thread_mode; /* initially CU_STREAM_CAPTURE_MODE_GLOBAL */

CUresult capture_begin(struct sim_stream *stream, struct sim_graph *graph, CUstreamCaptureMode mode)
{
	if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream == stream->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	struct sim_capture *capture = calloc(1, sizeof(*capture));
	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*capture = (struct sim_capture){.graph = graph ? graph : graph_make(),
	                                .mode = mode,
	                                .origin = stream,
	                                .thread = pthread_self(),
	                                .id = ++sim.next_id,
	                                .references = 1,
	                                .active = true,
	                                .foreign_graph = graph != NULL,
	                                .next = captures};
	captures = capture;
	stream->capture = capture;
	return CUDA_SUCCESS;
}

static CUgraphNodeType type_of(const struct sim_op *op)
{
	switch (op->kind) {
	case SIM_OP_KERNEL:
		return CU_GRAPH_NODE_TYPE_KERNEL;
	case SIM_OP_COPY:
		return CU_GRAPH_NODE_TYPE_MEMCPY;
	case SIM_OP_FILL:
		return CU_GRAPH_NODE_TYPE_MEMSET;
	case SIM_OP_HOST:
		return CU_GRAPH_NODE_TYPE_HOST;
	case SIM_OP_WAIT_VALUE:
	case SIM_OP_WRITE_VALUE:
		return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
	default:
		return CU_GRAPH_NODE_TYPE_EMPTY;
	}
}

static CUresult record(struct sim_capture *capture, const struct sim_stream *stream,
                       struct sim_event *event)
{
	capture_forget_event(event);
	capture->references++;
	event->capture = capture;
	return tips_copy(&event->tips, &stream->tips) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult wait(struct sim_stream *stream, const struct sim_event *event)
{
	if (!event->capture || !event->capture->active) {
		if (stream->capture)
			stream->capture->invalidated = true;
		return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_ERROR_INVALID_VALUE;
	}
	if (stream->capture && stream->capture != event->capture) {
		stream->capture->invalidated = event->capture->invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (stream == stream->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (!stream->capture) {
		stream->capture = event->capture;
		event->capture->references++;
	}
	return tips_copy(&stream->tips, &event->tips) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_add(struct sim_capture *capture, struct sim_stream *stream,
                     const struct sim_op *op)
{
	struct sim_node *node;
	if (capture->invalidated && capture->active)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (op->kind == SIM_OP_RECORD)
		return record(capture, stream, op->event.event);
	if (op->kind == SIM_OP_WAIT_EVENT)
		return wait(stream, op->event.event);
	SIM_TRY(node_add(capture->graph, type_of(op),
	                 (const struct sim_node *const *)stream->tips.nodes, stream->tips.count, op, 1,
	                 &node));
	tips_clear(&stream->tips);
	return tips_add(&stream->tips, node) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct sim_capture *capture_implicit(const struct sim_stream *stream)
{
	if (!captures || stream != stream->context->legacy)
		return NULL;
	for (const struct sim_stream *s = stream->context->streams; s; s = s->next)
		if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING))
			return s->capture;
	return NULL;
}

CUresult capture_check_legacy(const struct sim_stream *stream)
{
	struct sim_capture *capture = capture_implicit(stream);
	if (!capture)
		return CUDA_SUCCESS;
	capture->invalidated = true;
	return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult capture_check_sync(const struct sim_stream *stream)
{
	if (!stream->capture)
		return capture_check_legacy(stream);
	stream->capture->invalidated = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_check_unsafe(void)
{
	if (!captures || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct sim_capture *c = captures; c; c = c->next) {
		bool own = pthread_equal(c->thread, pthread_self()) &&
		           c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
		bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
		              c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
		if (own || global) {
			c->invalidated = true;
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return CUDA_SUCCESS;
}

/* Whether the origin's tips depend on everything that `stream` did in the capture. */
static bool joined(const struct sim_stream *stream, const struct sim_stream *origin)
{
	for (size_t i = 0; i < stream->tips.count; i++) {
		bool found = false;
		for (size_t j = 0; j < origin->tips.count && !found; j++)
			found = node_reaches(origin->tips.nodes[j], stream->tips.nodes[i]);
		if (!found)
			return false;
	}
	return true;
}

/* Takes all streams out of the capture; false: one of them had not joined the origin again. */
static bool take_streams_out(struct sim_capture *capture)
{
	bool all = true;
	struct sim_stream *origin = capture->origin;
	capture->references++;
	for (struct sim_context *c = sim.contexts; c; c = c->next)
		for (struct sim_stream *s = c->streams; s; s = s->next) {
			if (s->capture != capture || s == origin)
				continue;
			all &= joined(s, origin);
			capture_forget_stream(s);
		}
	capture_forget_stream(origin);
	capture->active = false;
	struct sim_capture **at = &captures;
	while (*at != capture)
		at = &(*at)->next;
	*at = capture->next;
	capture_release(capture);
	return all;
}

void capture_abandon(struct sim_stream *stream)
{
	struct sim_capture *capture = stream->capture;
	if (!capture)
		return;
	if (capture->origin != stream) {
		capture->invalidated = true;
		capture_forget_stream(stream);
		return;
	}
	struct sim_graph *graph = capture->foreign_graph ? NULL : capture->graph;
	take_streams_out(capture);
	if (graph)
		graph_free(graph);
}

CUresult capture_end(struct sim_stream *stream, struct sim_graph **out)
{
	struct sim_capture *capture = stream->capture;
	*out = NULL;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream) {
		capture->invalidated = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(capture->thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	struct sim_graph *graph = capture->graph;
	bool invalidated = capture->invalidated, foreign = capture->foreign_graph;
	bool all = take_streams_out(capture);
	if (!invalidated && all) {
		*out = graph;
		return CUDA_SUCCESS;
	}
	if (!foreign)
		graph_free(graph);
	return invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

CUstreamCaptureMode capture_exchange_mode(CUstreamCaptureMode mode)
{
	CUstreamCaptureMode old = thread_mode;
	thread_mode = mode;
	return old;
}
