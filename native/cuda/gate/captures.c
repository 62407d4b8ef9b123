/* Captures: a stream that begins or joins one is not in the table by then, and nobody touches it.
 *
 * To ask whether a stream captures is not enough: another thread may begin a capture between our
 * question and our mark. So before the driver begins a capture, the stream gets its mark and is
 * removed from the table. Meanwhile nobody touches the context's legacy stream, since that would
 * break the capture of a blocking stream. A stream joins a capture by waiting for an event: while
 * there are captures, every stream that waits for an event is removed as well. */
#include "gate/base.h"
#include "gate/close.h"
#include "gate/contexts.h"
#include "gate/gate.h"
#include "gate/streams.h"

static void remove_by_handle(struct gates *all, CUstream stream, bool per_thread)
{
	if (!gate_is_default(stream)) {
		gate_mark_and_remove_stream(all, (uint64_t)(uintptr_t)stream);
	} else if (!gate_is_legacy(stream, per_thread)) {
		struct gate_context *context = gate_current_context(all);
		if (context)
			gate_mark_and_remove_stream(all, gate_thread_key(all, context));
	}
}

static struct gate_context *context_of(struct gates *all, CUstream stream)
{
	CUcontext handle = NULL;
	if (gate_is_default(stream))
		return gate_current_context(all);
	bool found = REAL(cuStreamGetCtx) && REAL(cuStreamGetCtx)(stream, &handle) == CUDA_SUCCESS;
	return found ? gate_find_context(all, handle) : NULL;
}

struct gate_context *gate_capture_beginning(CUstream stream, bool per_thread)
{
	struct gates *all = gates_here();
	if (!all)
		return NULL;
	gate_close_all();
	atomic_fetch_add(&all->captures, 1);
	remove_by_handle(all, stream, per_thread);
	struct gate_context *context = context_of(all, stream);
	if (context) {
		atomic_fetch_add(&context->captures_beginning, 1);
		gate_wait_untouched(context->gate, &context->legacy);
	}
	return context;
}

void gate_capture_begun(struct gate_context *context, CUresult result)
{
	struct gates *all = gates_here();
	if (context)
		atomic_fetch_sub(&context->captures_beginning, 1);
	if (all && result != CUDA_SUCCESS)
		atomic_fetch_sub(&all->captures, 1);
}

/* A capture that ends in another way stays counted. That costs streams that wait for events some
 * time, and nothing else. */
void gate_capture_ended(CUresult result)
{
	struct gates *all = gates_here();
	bool ended = result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
	             result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (all && ended)
		atomic_fetch_sub(&all->captures, 1);
}

void gate_stream_joining(CUstream stream, bool per_thread)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	gate_mark_legacy_streams();
	if (all && atomic_load(&all->captures) > 0 && gates_here())
		remove_by_handle(all, stream, per_thread);
}
