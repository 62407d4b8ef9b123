/* The calls that begin, end or join a capture. */
#include "gate/gate.h"

/* The calls that begin a capture differ in the arguments after the stream. */
#define BEGIN_CAPTURE(per_thread, call)                                                            \
	do {                                                                                           \
		struct gate_context *context = gate_capture_beginning(stream, per_thread);                 \
		CUresult result = call;                                                                    \
		gate_capture_begun(context, result);                                                       \
		return result;                                                                             \
	} while (0)

CUresult hook_capture_begin_v1(__typeof__(&cuStreamBeginCapture) real, CUstream stream)
{
	BEGIN_CAPTURE(false, real(stream));
}

CUresult hook_capture_begin_v1_ptsz(__typeof__(&cuStreamBeginCapture) real, CUstream stream)
{
	BEGIN_CAPTURE(true, real(stream));
}

CUresult hook_capture_begin(__typeof__(&cuStreamBeginCapture_v2) real, CUstream stream,
                            CUstreamCaptureMode mode)
{
	BEGIN_CAPTURE(false, real(stream, mode));
}

CUresult hook_capture_begin_ptsz(__typeof__(&cuStreamBeginCapture_v2) real, CUstream stream,
                                 CUstreamCaptureMode mode)
{
	BEGIN_CAPTURE(true, real(stream, mode));
}

CUresult hook_capture_to_graph_begin(__typeof__(&cuStreamBeginCaptureToGraph) real, CUstream stream,
                                     CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t count,
                                     CUstreamCaptureMode mode)
{
	BEGIN_CAPTURE(false, real(stream, graph, dependencies, edges, count, mode));
}

CUresult hook_capture_to_graph_begin_ptsz(__typeof__(&cuStreamBeginCaptureToGraph) real,
                                          CUstream stream, CUgraph graph,
                                          const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count,
                                          CUstreamCaptureMode mode)
{
	BEGIN_CAPTURE(true, real(stream, graph, dependencies, edges, count, mode));
}

CUresult hook_recapture_begin(__typeof__(&cuStreamBeginRecaptureToGraph) real, CUstream stream,
                              CUstreamCaptureMode mode, CUgraph graph,
                              CUgraphRecaptureCallback function, void *data)
{
	BEGIN_CAPTURE(false, real(stream, mode, graph, function, data));
}

CUresult hook_recapture_begin_ptsz(__typeof__(&cuStreamBeginRecaptureToGraph) real, CUstream stream,
                                   CUstreamCaptureMode mode, CUgraph graph,
                                   CUgraphRecaptureCallback function, void *data)
{
	BEGIN_CAPTURE(true, real(stream, mode, graph, function, data));
}

CUresult hook_capture_to_cig_begin(__typeof__(&cuStreamBeginCaptureToCig) real, CUstream stream,
                                   CUstreamCigCaptureParams *parameters)
{
	BEGIN_CAPTURE(false, real(stream, parameters));
}

CUresult hook_capture_to_cig_begin_ptsz(__typeof__(&cuStreamBeginCaptureToCig) real,
                                        CUstream stream, CUstreamCigCaptureParams *parameters)
{
	BEGIN_CAPTURE(true, real(stream, parameters));
}

CUresult hook_capture_end(__typeof__(&cuStreamEndCapture) real, CUstream stream, CUgraph *graph)
{
	CUresult result = real(stream, graph);
	gate_capture_ended(result);
	return result;
}

CUresult hook_capture_to_cig_end(__typeof__(&cuStreamEndCaptureToCig) real, CUstream stream)
{
	CUresult result = real(stream);
	gate_capture_ended(result);
	return result;
}

CUresult hook_wait_event(__typeof__(&cuStreamWaitEvent) real, CUstream stream, CUevent event,
                         unsigned flags)
{
	gate_stream_joining(stream, false);
	return real(stream, event, flags);
}

CUresult hook_wait_event_ptsz(__typeof__(&cuStreamWaitEvent) real, CUstream stream, CUevent event,
                              unsigned flags)
{
	gate_stream_joining(stream, true);
	return real(stream, event, flags);
}
