/* The gates' start, and contexts: set up when they are created, abandoned when they break, removed
 * when they are destroyed. */
#define _GNU_SOURCE
#include "gate/lifecycle.h"

#include "cancel.h"
#include "gate/base.h"
#include "gate/contexts.h"
#include "gate/drain.h"
#include "gate/gate.h"
#include "gate/selftest.h"
#include "gate/streams.h"
#include "session.h"

#include <time.h>

/* How long a thread waits for another that is setting a context up: longer than its self-test. */
#define ADDING_MS 35000

void gates_start(void)
{
	static void *_Atomic memory;
	struct gates *all = session_wiped_memory(&memory, sizeof(*all));
	const struct aliquot_credit *credit = session_credit();
	if (!all)
		return;
	for (uint32_t i = 0; i < session_limits()->slice_count; i++) {
		all->gates[i].index = i;
		all->gates[i].credit = &credit->slices[i];
		all->gates[i].work = &session_work()[i];
		costs_init(&all->gates[i].costs);
	}
	atomic_store_explicit(&gates_page, all, memory_order_release);
}

/* --- created ---------------------------------------------------------------------------------- */

/* Precondition: its state is ADDING, by the caller. A thread that was cancelled here would leave it
 * so for ever. */
static CUresult set_up(struct gates *all, struct gate_context *context)
{
	int cancel = cancel_disable();
	CUdevice device;
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	bool pushed;
	if (gate_push_context(context, &pushed) && REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS) {
		uint32_t slice = session_slice_of_device(device);
		context->gate = slice == SESSION_NO_SLICE ? NULL : &all->gates[slice];
		result = context->gate ? gate_set_up_context(context, device) : CUDA_SUCCESS;
	}
	gate_pop_context(pushed);
	gate_restore_capture_mode(mode);
	bool gated = context->gate && result == CUDA_SUCCESS;
	gate_add_legacy_stream(context, gated ? context->gate : NULL);
	gate_set_state(all, context, gated ? GATE_CONTEXT_GATED : GATE_CONTEXT_PLAIN);
	cancel_restore(cancel);
	return result;
}

struct gate_context *gate_find_or_add_context(struct gates *all, CUcontext handle)
{
	struct gate_context *context = gate_find_context(all, handle);
	if (context)
		return context;
	context = gate_add_context(all, handle);
	if (context)
		set_up(all, context);
	return context ? context : gate_find_context(all, handle);
}

static bool is_hard(CUdevice device)
{
	uint32_t slice = session_slice_of_device(device);
	return slice != SESSION_NO_SLICE &&
	       atomic_load(&session_limits()->slices[slice].policy) == ALIQUOT_HARD;
}

/* Another thread is setting up the same context: its result. */
static CUresult wait_for_set_up(struct gate_context *context)
{
	struct timespec pause = {.tv_nsec = 1000 * 1000};
	for (unsigned i = 0; i < ADDING_MS && gate_state_of(context) == GATE_CONTEXT_ADDING; i++)
		nanosleep(&pause, NULL);
	uint32_t state = gate_state_of(context);
	bool failed = state == GATE_CONTEXT_ADDING || (state == GATE_CONTEXT_PLAIN && context->gate);
	return failed ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult add_created(struct gates *all, CUcontext handle)
{
	struct gate_context *context = gate_find_context(all, handle);
	if (context)
		return wait_for_set_up(context);
	context = gate_add_context(all, handle);
	if (context)
		return set_up(all, context);
	gate_unknown_context();
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gate_context_created(CUcontext handle, CUdevice device)
{
	struct gates *all = gates_here();
	CUresult result = all ? add_created(all, handle) : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS || !is_hard(device))
		return CUDA_SUCCESS;
	forward_say("this GPU cannot hold a slice's work back (CUDA error %d), as the policy `hard` "
	            "needs: use --policy elastic; ask: aliquot doctor",
	            (int)result);
	return CUDA_ERROR_NOT_SUPPORTED;
}

void gate_unknown_context(void)
{
	struct gates *all = gates_here();
	if (all)
		gate_set_unknown_contexts(all);
}

/* --- broken ----------------------------------------------------------------------------------- */

void gate_call_failed(CUresult result)
{
	struct gates *all = gate_is_sticky(result) ? gates_here() : NULL;
	struct gate_context *context = all ? gate_current_context(all) : NULL;
	if (!context || gate_state_of(context) != GATE_CONTEXT_GATED ||
	    !gate_take(context->gate, GATE_PATIENCE_NS))
		return;
	gate_abandon_context(context);
	gate_give(context->gate);
}

/* --- destroyed -------------------------------------------------------------------------------- */

void gate_context_ending(CUcontext handle)
{
	struct gates *all = gates_here();
	struct gate_context *context = all ? gate_find_context(all, handle) : NULL;
	if (!context || gate_state_of(context) == GATE_CONTEXT_ENDING)
		return; /* another thread is destroying it */
	gate_close_all();
	context->state_before = gate_state_of(context);
	gate_set_state(all, context, GATE_CONTEXT_ENDING);
	gate_wait_undrained(all, context);
	gate_remove_streams(all, context);
	gate_remove_legacy_stream(context);
}

void gate_context_ended(CUcontext handle, bool is_gone)
{
	struct gates *all = gates_here();
	struct gate_context *context = all ? gate_find_context(all, handle) : NULL;
	if (!context || gate_state_of(context) != GATE_CONTEXT_ENDING)
		return;
	struct gate *gate = context->gate;
	if (!is_gone) {
		gate_add_legacy_stream(context, context->state_before == GATE_CONTEXT_GATED ? gate : NULL);
		gate_set_state(all, context, context->state_before);
	} else if (!gate) {
		gate_set_state(all, context, GATE_CONTEXT_EMPTY);
	} else {
		gate_set_state(all, context, GATE_CONTEXT_ENDED);
		atomic_fetch_add(&gate->ended_contexts, 1);
		/* The thread that takes the gate next frees the context's slot: this thread, if it can. */
		if (gate_take(gate, GATE_PATIENCE_NS))
			gate_give(gate);
	}
}
