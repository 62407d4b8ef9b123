/* Stream capture: what a stream is asked becomes nodes of a graph instead.
 *
 * Each capturing stream knows the nodes its next one depends on (its tips). Recording an event
 * keeps the tips with the event; waiting for it adds them to the waiting stream, which joins the
 * capture if it was outside. A call that a capture forbids fails and spoils the capture, as with
 * the real driver.
 */
#include "cuda_graph.h"

#include <stdlib.h>
#include <string.h>

struct sim_capture {
	struct sim_graph *graph;
	CUstreamCaptureMode mode;
	struct sim_stream *origin;
	pthread_t thread;
	uint64_t id;
	int references; /* streams in it and events recorded in it */
	bool active, spoiled, foreign_graph;
	struct sim_capture *next; /* of the active ones */
};

static struct sim_capture *captures;
static __thread CUstreamCaptureMode thread_mode; /* CU_STREAM_CAPTURE_MODE_GLOBAL at first */

static void leave(struct sim_capture *capture)
{
	if (--capture->references == 0)
		free(capture);
}

void capture_forget_event(struct sim_event *event)
{
	if (event->capture)
		leave(event->capture);
	event->capture = NULL;
	tips_clear(&event->tips);
}

static void leave_stream(struct sim_stream *stream)
{
	tips_clear(&stream->tips);
	struct sim_capture *capture = stream->capture;
	stream->capture = NULL;
	leave(capture);
}

static bool tips_copy(struct sim_tips *to, const struct sim_tips *from)
{
	for (size_t i = 0; i < from->count; i++)
		if (!tips_add(to, from->nodes[i]))
			return false;
	return true;
}

static CUresult begin(struct sim_stream *stream, struct sim_graph *graph, CUstreamCaptureMode mode)
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

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
	SIM_ENTER();
	struct sim_stream *stream;
	SIM_TRY(stream_get(handle, &stream));
	return begin(stream, NULL, mode);
}

CUresult cuStreamBeginCapture(CUstream handle)
{
	return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph into, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t count,
                                     CUstreamCaptureMode mode)
{
	SIM_ENTER();
	struct sim_stream *stream;
	struct sim_graph *graph;
	struct sim_node *node;
	(void)edges;
	SIM_TRY(stream_get(handle, &stream));
	SIM_TRY(graph_get(into, &graph));
	for (size_t i = 0; i < count; i++)
		SIM_TRY(node_get(dependencies[i], &node));
	SIM_TRY(begin(stream, graph, mode));
	for (size_t i = 0; i < count; i++)
		tips_add(&stream->tips, (struct sim_node *)dependencies[i]);
	return CUDA_SUCCESS;
}

static CUgraphNodeType type_of(const struct sim_op *op)
{
	switch (op->kind) {
	case SIM_OP_KERNEL:
		return CU_GRAPH_NODE_TYPE_KERNEL;
	case SIM_OP_COPY:
		return CU_GRAPH_NODE_TYPE_MEMCPY;
	case SIM_OP_SET:
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
			stream->capture->spoiled = true;
		return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_ERROR_INVALID_VALUE;
	}
	if (stream->capture && stream->capture != event->capture) {
		stream->capture->spoiled = event->capture->spoiled = true;
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
	if (capture->spoiled && capture->active)
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

/* The capture that work in this stream would depend on without saying so; NULL: there is none. */
static struct sim_capture *implicit(const struct sim_stream *stream)
{
	if (!captures || stream != stream->context->legacy)
		return NULL;
	for (const struct sim_stream *s = stream->context->streams; s; s = s->next)
		if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING))
			return s->capture;
	return NULL;
}

CUresult capture_refuses_legacy(const struct sim_stream *stream)
{
	struct sim_capture *capture = implicit(stream);
	if (!capture)
		return CUDA_SUCCESS;
	capture->spoiled = true;
	return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult capture_refuses_sync(const struct sim_stream *stream)
{
	if (!stream->capture)
		return capture_refuses_legacy(stream);
	stream->capture->spoiled = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_unsafe(void)
{
	if (!captures || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct sim_capture *c = captures; c; c = c->next) {
		bool own = pthread_equal(c->thread, pthread_self()) &&
		           c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
		bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
		              c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
		if (own || global) {
			c->spoiled = true;
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return CUDA_SUCCESS;
}

/* Whether the origin's tips depend on all that `stream` did in the capture. */
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

/* Takes every stream out of the capture; false: one had not been joined to the origin. */
static bool end(struct sim_capture *capture)
{
	bool all = true;
	struct sim_stream *origin = capture->origin;
	capture->references++;
	for (struct sim_context *c = sim.contexts; c; c = c->next)
		for (struct sim_stream *s = c->streams; s; s = s->next) {
			if (s->capture != capture || s == origin)
				continue;
			all &= joined(s, origin);
			leave_stream(s);
		}
	leave_stream(origin);
	capture->active = false;
	struct sim_capture **at = &captures;
	while (*at != capture)
		at = &(*at)->next;
	*at = capture->next;
	leave(capture);
	return all;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *out)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	SIM_TRY(stream_get(handle, &stream));
	struct sim_capture *capture = stream->capture;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream) {
		capture->spoiled = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(capture->thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	struct sim_graph *graph = capture->graph;
	bool spoiled = capture->spoiled, foreign = capture->foreign_graph;
	bool all = end(capture);
	if (!spoiled && all) {
		*out = (CUgraph)graph;
		return CUDA_SUCCESS;
	}
	if (!foreign)
		graph_free(graph);
	return spoiled ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

void capture_abandon(struct sim_stream *stream)
{
	struct sim_capture *capture = stream->capture;
	if (!capture)
		return;
	if (capture->origin != stream) {
		capture->spoiled = true;
		leave_stream(stream);
		return;
	}
	struct sim_graph *graph = capture->foreign_graph ? NULL : capture->graph;
	end(capture);
	if (graph)
		graph_free(graph);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode old = thread_mode;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   const CUgraphEdgeData **edges, size_t *count)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(handle, &stream));
	if (implicit(stream)) /* to ask is refused, and spoils nothing */
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	const struct sim_capture *capture = stream->capture;
	*status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
	          : capture->spoiled ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
	                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	if (!capture || capture->spoiled)
		return CUDA_SUCCESS;
	if (id)
		*id = capture->id;
	if (graph)
		*graph = (CUgraph)capture->graph;
	if (dependencies)
		*dependencies = (const CUgraphNode *)stream->tips.nodes;
	if (edges)
		*edges = NULL;
	if (count)
		*count = stream->tips.count;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
	return cuStreamGetCaptureInfo_v3(handle, status, id, graph, dependencies, NULL, count);
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return cuStreamGetCaptureInfo_v3(handle, status, id, NULL, NULL, NULL, NULL);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
	return cuStreamGetCaptureInfo_v3(handle, status, NULL, NULL, NULL, NULL, NULL);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *dependencies,
                                              const CUgraphEdgeData *edges, size_t count,
                                              unsigned int flags)
{
	SIM_ENTER();
	struct sim_stream *stream;
	struct sim_node *node;
	(void)edges;
	SIM_TRY(stream_get(handle, &stream));
	if (!stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	for (size_t i = 0; i < count; i++)
		SIM_TRY(node_get(dependencies[i], &node));
	if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
		tips_clear(&stream->tips);
	for (size_t i = 0; i < count; i++)
		tips_add(&stream->tips, (struct sim_node *)dependencies[i]);
	return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies, size_t count,
                                           unsigned int flags)
{
	return cuStreamUpdateCaptureDependencies_v2(handle, dependencies, NULL, count, flags);
}
