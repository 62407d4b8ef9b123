/* What happens before and after a launch that does not take the fast path. */
#include "gate/base.h"
#include "gate/close.h"
#include "gate/contexts.h"
#include "gate/gate.h"
#include "gate/insert.h"
#include "gate/lifecycle.h"
#include "gate/quantum.h"
#include "gate/streams.h"

#include <errno.h>

/* The handle that means the same through every entry point of the driver. */
static CUstream handle_of(const struct gate_launch *launch)
{
	if (gate_is_legacy(launch->stream, launch->per_thread))
		return CU_STREAM_LEGACY;
	return gate_is_default(launch->stream) ? CU_STREAM_PER_THREAD : launch->stream;
}

static struct gate_context *context_of(struct gates *all, const struct gate_launch *launch)
{
	CUcontext context = NULL;
	CUresult result = gate_is_default(launch->stream)
	                      ? REAL(cuCtxGetCurrent)(&context)
	                      : REAL(cuStreamGetCtx)(launch->stream, &context);
	return result == CUDA_SUCCESS && context ? gate_find_or_add_context(all, context) : NULL;
}

static void prepare(struct gates *all, struct gate_launch *launch)
{
	struct gate_context *context = context_of(all, launch);
	uint32_t state = context ? atomic_load(&context->state) : GATE_CONTEXT_EMPTY;
	if (state == GATE_CONTEXT_PLAIN)
		gate_add_plain_stream(context, launch->stream, launch->per_thread);
	if (state != GATE_CONTEXT_GATED)
		return;
	struct gate *gate = launch->gate = context->gate;
	if (!gate_take(gate, GATE_PATIENCE_NS)) {
		gate_overtake_legacy(context);
		gate_add(&gate->work->launches, 1);
		return;
	}
	struct gate_stream *stream = NULL;
	if (atomic_load(&context->state) == GATE_CONTEXT_GATED)
		stream = gate_stream_slot(gate, context, launch->stream, launch->per_thread);
	if (stream)
		quantum_count_launch(gate, stream, launch);
	gate_give(gate);
}

/* While there are several contexts, the current one tells whose default stream it is. */
static bool is_fast_after_all(struct gates *all, const struct gate_launch *launch)
{
	if (!gate_is_default(launch->stream) || atomic_load(&all->only_context))
		return false;
	struct gate_stream *slot = gate_find_default(all, gate_current_context(all), launch->stream,
	                                             launch->per_thread);
	return gate_fast_path_at(slot, launch->key, launch->is_graph);
}

void gate_before(struct gate_launch *launch)
{
	struct gates *all = gates_here();
	if (!all || is_fast_after_all(all, launch))
		return;
	int before = errno;
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	if (!gate_is_capturing(handle_of(launch)))
		prepare(all, launch);
	gate_restore_capture_mode(mode);
	errno = before;
}

static void mark_after(const struct gate_launch *launch)
{
	if (!gate_take(launch->gate, GATE_PATIENCE_NS))
		return;
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	gate_insert_mark_now(launch->gate, launch->mark_after);
	gate_restore_capture_mode(mode);
	gate_give(launch->gate);
}

/* No launch follows in a quantum that is full or for one launch. With its mark in the streams now,
 * its end is seen when it comes, whatever the program does next. */
static void close_full(struct gate *gate)
{
	if (!gate_take(gate, 0))
		return;
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	if (gate->is_solo || !gate_fits(gate, ALIQUOT_TURNS, 1))
		quantum_close(gate);
	gate_restore_capture_mode(mode);
	gate_give(gate);
}

CUresult gate_after(const struct gate_launch *launch, CUresult result)
{
	int before = errno;
	if (launch->mark_after)
		mark_after(launch);
	if (launch->gate && gate_takes_turns(launch->gate))
		close_full(launch->gate);
	if (launch->gate)
		gate_ring_if_asked(launch->gate);
	if (result != CUDA_SUCCESS)
		gate_call_failed(result);
	errno = before;
	return result;
}

void gate_forget_key(uint64_t key)
{
	struct gates *all = gates_here();
	for (uint32_t i = 0; all && i < ALIQUOT_MAX_GPUS; i++)
		if (all->gates[i].work)
			cost_forget(&all->gates[i].costs, key);
}
