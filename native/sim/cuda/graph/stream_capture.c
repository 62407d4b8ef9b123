/* The entry points of stream capture. What they do is in capture.c. */
#include "cuda/graph/capture.h"
#include "cuda/graph/graph.h"

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
	SIM_ENTER();
	struct sim_stream *stream;
	SIM_TRY(stream_get(handle, &stream));
	return capture_begin(stream, NULL, mode);
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
	SIM_TRY(capture_begin(stream, graph, mode));
	for (size_t i = 0; i < count; i++)
		tips_add(&stream->tips, (struct sim_node *)dependencies[i]);
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *out)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	SIM_TRY(stream_get(handle, &stream));
	return capture_end(stream, (struct sim_graph **)out);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = capture_exchange_mode(*mode);
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
	if (capture_implicit(stream)) /* the query fails, but does not invalidate */
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	const struct sim_capture *capture = stream->capture;
	*status = !capture               ? CU_STREAM_CAPTURE_STATUS_NONE
	          : capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
	                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	if (!capture || capture->invalidated)
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
