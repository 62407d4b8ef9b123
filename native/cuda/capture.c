/* Captures: a stream that begins or joins one is in nobody's hands of ours by then.
 *
 * To ask whether a stream captures is not enough: between the question and a mark another thread may
 * have it begin. So before the driver is asked to begin, the stream has its mark and is taken out; and
 * for that moment nobody touches the legacy stream, since that would spoil the capture of a blocking
 * one. A stream joins by waiting for an event: while there are captures, waiting streams are taken out
 * as well. */
#include "gate.h"

/* The beginning calls differ in what follows the stream. */
#define BEGIN(per_thread, call)                                                                    \
	do {                                                                                           \
		struct gate_context *context = gate_capture_begins(stream, per_thread);                    \
		CUresult result = call;                                                                    \
		gate_capture_begun(context, result);                                                       \
		return result;                                                                             \
	} while (0)

CUresult hook_begin_v1(__typeof__(&cuStreamBeginCapture) real, CUstream stream)
{
	BEGIN(false, real(stream));
}

CUresult hook_begin_v1_ptsz(__typeof__(&cuStreamBeginCapture) real, CUstream stream)
{
	BEGIN(true, real(stream));
}

CUresult hook_begin(__typeof__(&cuStreamBeginCapture_v2) real, CUstream stream,
                    CUstreamCaptureMode mode)
{
	BEGIN(false, real(stream, mode));
}

CUresult hook_begin_ptsz(__typeof__(&cuStreamBeginCapture_v2) real, CUstream stream,
                         CUstreamCaptureMode mode)
{
	BEGIN(true, real(stream, mode));
}

CUresult hook_begin_to_graph(__typeof__(&cuStreamBeginCaptureToGraph) real, CUstream stream,
                             CUgraph graph, const CUgraphNode *dependencies,
                             const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
	BEGIN(false, real(stream, graph, dependencies, edges, count, mode));
}

CUresult hook_begin_to_graph_ptsz(__typeof__(&cuStreamBeginCaptureToGraph) real, CUstream stream,
                                  CUgraph graph, const CUgraphNode *dependencies,
                                  const CUgraphEdgeData *edges, size_t count,
                                  CUstreamCaptureMode mode)
{
	BEGIN(true, real(stream, graph, dependencies, edges, count, mode));
}

CUresult hook_begin_again(__typeof__(&cuStreamBeginRecaptureToGraph) real, CUstream stream,
                          CUstreamCaptureMode mode, CUgraph graph,
                          CUgraphRecaptureCallback function, void *data)
{
	BEGIN(false, real(stream, mode, graph, function, data));
}

CUresult hook_begin_again_ptsz(__typeof__(&cuStreamBeginRecaptureToGraph) real, CUstream stream,
                               CUstreamCaptureMode mode, CUgraph graph,
                               CUgraphRecaptureCallback function, void *data)
{
	BEGIN(true, real(stream, mode, graph, function, data));
}

CUresult hook_begin_cig(__typeof__(&cuStreamBeginCaptureToCig) real, CUstream stream,
                        CUstreamCigCaptureParams *parameters)
{
	BEGIN(false, real(stream, parameters));
}

CUresult hook_begin_cig_ptsz(__typeof__(&cuStreamBeginCaptureToCig) real, CUstream stream,
                             CUstreamCigCaptureParams *parameters)
{
	BEGIN(true, real(stream, parameters));
}

CUresult hook_end_capture(__typeof__(&cuStreamEndCapture) real, CUstream stream, CUgraph *graph)
{
	return gate_capture_ended(real(stream, graph));
}

CUresult hook_end_cig(__typeof__(&cuStreamEndCaptureToCig) real, CUstream stream)
{
	return gate_capture_ended(real(stream));
}

CUresult hook_wait_event(__typeof__(&cuStreamWaitEvent) real, CUstream stream, CUevent event,
                         unsigned flags)
{
	gate_joining(stream, false);
	return real(stream, event, flags);
}

CUresult hook_wait_event_ptsz(__typeof__(&cuStreamWaitEvent) real, CUstream stream, CUevent event,
                              unsigned flags)
{
	gate_joining(stream, true);
	return real(stream, event, flags);
}
