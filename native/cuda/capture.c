/* Captures: a stream that begins or joins one is in nobody's hands of ours by then.
 *
 * To ask whether a stream captures is not enough: between the question and a mark another thread may
 * have it begin. So before the driver is asked to begin, the stream has its mark and is taken out; and
 * for that moment nobody touches the legacy stream, since that would spoil the capture of a blocking
 * one. A stream joins by waiting for an event: while there are captures, waiting streams are taken out
 * as well. */
#include "gate.h"

/* A stream by any of its names goes out of our hands. */
static void let_go(struct gates *all, CUstream stream, bool per_thread)
{
	if (!gate_is_default(stream)) {
		gate_let_go(all, (uint64_t)(uintptr_t)stream);
	} else if (!gate_is_legacy(stream, per_thread)) {
		struct gate_context *context = gate_current_context(all);
		if (context)
			gate_let_go(all, gate_thread_key(all, context));
	}
}

static struct gate_context *context_of(struct gates *all, CUstream stream)
{
	CUcontext handle = NULL;
	if (gate_is_default(stream))
		return gate_current_context(all);
	bool known = REAL(cuStreamGetCtx) && REAL(cuStreamGetCtx)(stream, &handle) == CUDA_SUCCESS;
	return known ? gate_find_context(all, handle) : NULL;
}

static struct gate_context *begins(CUstream stream, bool per_thread)
{
	struct gates *all = gates_here();
	if (!all)
		return NULL;
	gate_closing_always();
	atomic_fetch_add(&all->captures, 1);
	let_go(all, stream, per_thread);
	struct gate_context *context = context_of(all, stream);
	if (context) {
		atomic_fetch_add(&context->beginning, 1);
		gate_wait_untouched(context->gate, &context->legacy);
	}
	return context;
}

static void begun(struct gate_context *context, CUresult result)
{
	struct gates *all = gates_here();
	if (context)
		atomic_fetch_sub(&context->beginning, 1);
	if (all && result != CUDA_SUCCESS)
		atomic_fetch_sub(&all->captures, 1);
}

/* One that ends in another way stays counted, which costs streams that wait for events some time. */
static CUresult ended(CUresult result)
{
	struct gates *all = gates_here();
	bool ended = result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
	             result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (all && ended)
		atomic_fetch_sub(&all->captures, 1);
	return result;
}

static void joining(CUstream stream, bool per_thread)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	gate_beside();
	if (all && atomic_load(&all->captures) > 0 && gates_here())
		let_go(all, stream, per_thread);
}

/* The beginning calls differ in what follows the stream. */
#define BEGIN(per_thread, call)                                                                    \
	do {                                                                                           \
		struct gate_context *context = begins(stream, per_thread);                                 \
		CUresult result = call;                                                                    \
		begun(context, result);                                                                    \
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
	return ended(real(stream, graph));
}

CUresult hook_end_cig(__typeof__(&cuStreamEndCaptureToCig) real, CUstream stream)
{
	return ended(real(stream));
}

CUresult hook_wait_event(__typeof__(&cuStreamWaitEvent) real, CUstream stream, CUevent event,
                         unsigned flags)
{
	joining(stream, false);
	return real(stream, event, flags);
}

CUresult hook_wait_event_ptsz(__typeof__(&cuStreamWaitEvent) real, CUstream stream, CUevent event,
                              unsigned flags)
{
	joining(stream, true);
	return real(stream, event, flags);
}
