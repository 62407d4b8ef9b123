/* Which contexts there are, and what becomes of their gates: made with them, given up when they break,
 * tidied up when they have ended. */
#define _GNU_SOURCE
#include "gate.h"
#include "session.h"

#include <time.h>

#define MAKING_MS 2000

/* --- finding ------------------------------------------------------------------------------------ */

#define EACH_CONTEXT(context, all)                                                                 \
	for (struct gate_context *context = (all)->contexts,                                           \
	                         *end_ = context + atomic_load(&(all)->context_end);                   \
	     context < end_; context++)

static uint32_t state_of(struct gate_context *context)
{
	return atomic_load_explicit(&context->state, memory_order_acquire);
}

struct gate_context *gate_find_context(struct gates *all, CUcontext handle)
{
	EACH_CONTEXT (context, all)
		if (atomic_load_explicit(&context->handle, memory_order_relaxed) == handle &&
		    state_of(context) != GATE_CONTEXT_EMPTY && state_of(context) != GATE_CONTEXT_ENDED)
			return context;
	return NULL;
}

struct gate_context *gate_current_context(struct gates *all)
{
	CUcontext current = NULL;
	if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current)
		return NULL;
	return gate_find_context(all, current);
}

/* While there is one context, default streams are found without asking whose. Precondition: the lock.
 */
static void find_only(struct gates *all)
{
	struct gate_context *only = NULL;
	unsigned count = atomic_load(&all->has_others);
	EACH_CONTEXT (context, all) {
		uint32_t state = state_of(context);
		count += state != GATE_CONTEXT_EMPTY && state != GATE_CONTEXT_ENDED;
		if (state == GATE_CONTEXT_GATED || state == GATE_CONTEXT_PLAIN)
			only = context;
	}
	atomic_store_explicit(&all->only, count == 1 ? only : NULL, memory_order_release);
}

static void set_state(struct gates *all, struct gate_context *context,
                      enum gate_context_state state)
{
	aliquot_lock(&all->lock);
	atomic_store(&context->state, state);
	find_only(all);
	aliquot_unlock(&all->lock);
}

void gate_other_contexts(void)
{
	struct gates *all = gates_here();
	if (!all)
		return;
	aliquot_lock(&all->lock);
	atomic_store(&all->has_others, true);
	find_only(all);
	aliquot_unlock(&all->lock);
}

bool gate_push(const struct gate_context *context, bool *pushed)
{
	CUcontext current = NULL, handle = atomic_load(&context->handle);
	*pushed = false;
	if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == handle)
		return true;
	*pushed = REAL(cuCtxPushCurrent_v2)(handle) == CUDA_SUCCESS;
	return *pushed;
}

void gate_pop(bool pushed)
{
	CUcontext popped;
	if (pushed)
		REAL(cuCtxPopCurrent_v2)(&popped);
}

/* --- making ------------------------------------------------------------------------------------- */

static CUresult make(struct gates *all, struct gate_context *context)
{
	CUdevice device;
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;
	CUstreamCaptureMode mode = gate_relax();
	bool pushed;
	if (gate_push(context, &pushed) && REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS) {
		uint32_t slice = session_slice_of_device(device);
		context->gate = slice == SESSION_NO_SLICE ? NULL : &all->gates[slice];
		result = context->gate ? gate_equip(context, device) : CUDA_SUCCESS;
	}
	gate_pop(pushed);
	gate_restrict(mode);
	bool gated = context->gate && result == CUDA_SUCCESS;
	atomic_store(&context->state, gated ? GATE_CONTEXT_GATED : GATE_CONTEXT_PLAIN);
	gate_place_legacy(context);
	set_state(all, context, gated ? GATE_CONTEXT_GATED : GATE_CONTEXT_PLAIN);
	return result;
}

/* A place for a context that is not known; NULL: there is none, or it is known by now. */
static struct gate_context *add(struct gates *all, CUcontext handle)
{
	struct gate_context *place = NULL;
	aliquot_lock(&all->lock);
	for (unsigned i = 0; i < GATE_CONTEXTS && !place && !gate_find_context(all, handle); i++)
		if (atomic_load(&all->contexts[i].state) == GATE_CONTEXT_EMPTY) {
			place = &all->contexts[i];
			if (i >= atomic_load(&all->context_end))
				atomic_store(&all->context_end, i + 1);
			atomic_store(&place->handle, handle);
			place->gate = NULL;
			atomic_store(&place->state, GATE_CONTEXT_MAKING);
		}
	find_only(all);
	aliquot_unlock(&all->lock);
	return place;
}

struct gate_context *gate_know_context(struct gates *all, CUcontext handle)
{
	struct gate_context *context = gate_find_context(all, handle);
	if (context)
		return context;
	context = add(all, handle);
	if (context)
		make(all, context);
	return context ? context : gate_find_context(all, handle);
}

static bool is_hard(CUdevice device)
{
	uint32_t slice = session_slice_of_device(device);
	return slice != SESSION_NO_SLICE &&
	       atomic_load(&session_limits()->slices[slice].policy) == ALIQUOT_HARD;
}

/* What another thread finds out about the same context. */
static CUresult wait_for_maker(struct gate_context *context)
{
	struct timespec moment = {.tv_nsec = 1000 * 1000};
	for (unsigned i = 0; i < MAKING_MS && state_of(context) == GATE_CONTEXT_MAKING; i++)
		nanosleep(&moment, NULL);
	bool refused = state_of(context) == GATE_CONTEXT_PLAIN && context->gate;
	return refused ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult make_known(struct gates *all, CUcontext handle)
{
	struct gate_context *context = gate_find_context(all, handle);
	if (context)
		return wait_for_maker(context);
	context = add(all, handle);
	if (context)
		return make(all, context);
	gate_other_contexts();
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult gate_context_made(CUcontext handle, CUdevice device)
{
	struct gates *all = gates_here();
	CUresult result = all ? make_known(all, handle) : CUDA_SUCCESS;
	if (result == CUDA_SUCCESS || !is_hard(device))
		return CUDA_SUCCESS;
	forward_say("this GPU cannot hold a slice's work back (CUDA error %d), as the policy `hard` "
	            "needs: use --policy elastic; ask: aliquot doctor",
	            (int)result);
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* --- ending ------------------------------------------------------------------------------------- */

bool gate_breaks(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_EXTERNAL_DEVICE:
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
	case CUDA_ERROR_UNKNOWN:
		return true;
	default:
		return false;
	}
}

/* Marks that will never come count as come: nobody is to wait for them. Precondition: taken. */
static void settle_marks(struct gates *all, struct gate_context *context)
{
	struct gate *gate = context->gate;
	uint16_t whose = (uint16_t)(context - all->contexts + 1);
	for (uint32_t i = 0; i < atomic_load(&gate->work->marks_end) && i < ALIQUOT_MARKS; i++) {
		struct aliquot_mark *word = &gate->work->marks[i];
		if (gate->mark_of[i].context != whose)
			continue;
		atomic_store(&word->done, atomic_load(&word->asked));
		gate->mark_of[i].context = 0;
	}
}

void gate_context_broken(struct gate_context *context)
{
	struct gates *all = atomic_load(&gates_page);
	if (state_of(context) != GATE_CONTEXT_GATED)
		return;
	set_state(all, context, GATE_CONTEXT_PLAIN);
	gate_drop_streams(all, context);
	gate_drop_legacy(context);
	gate_place_legacy(context);
	settle_marks(all, context);
}

void gate_failed(CUresult result)
{
	struct gates *all = gate_breaks(result) ? gates_here() : NULL;
	struct gate_context *context = all ? gate_current_context(all) : NULL;
	if (!context || state_of(context) != GATE_CONTEXT_GATED ||
	    !gate_take(context->gate, GATE_PATIENCE_NS))
		return;
	gate_context_broken(context);
	gate_give(context->gate);
}

void gate_context_ending(CUcontext handle)
{
	struct gates *all = gates_here();
	struct gate_context *context = all ? gate_find_context(all, handle) : NULL;
	if (!context || state_of(context) == GATE_CONTEXT_ENDING)
		return; /* another thread is at it */
	gate_closing_always();
	context->state_before = state_of(context);
	set_state(all, context, GATE_CONTEXT_ENDING);
	gate_drop_streams(all, context);
	gate_drop_legacy(context);
}

void gate_context_ended(CUcontext handle, bool gone)
{
	struct gates *all = gates_here();
	struct gate_context *context = all ? gate_find_context(all, handle) : NULL;
	if (!context || state_of(context) != GATE_CONTEXT_ENDING)
		return;
	struct gate *gate = context->gate;
	if (!gone) {
		set_state(all, context, context->state_before);
		gate_place_legacy(context);
	} else if (!gate) {
		set_state(all, context, GATE_CONTEXT_EMPTY);
	} else {
		set_state(all, context, GATE_CONTEXT_ENDED);
		atomic_fetch_add(&gate->has_ended, 1);
		if (gate_take(gate, GATE_PATIENCE_NS)) /* which tidies up; or the next one does */
			gate_give(gate);
	}
}

void gate_tidy_up(struct gate *gate)
{
	struct gates *all = atomic_load(&gates_page);
	atomic_store(&gate->has_ended, 0);
	EACH_CONTEXT (context, all) {
		if (state_of(context) != GATE_CONTEXT_ENDED || context->gate != gate)
			continue;
		settle_marks(all, context);
		gate_unequip(context);
		set_state(all, context, GATE_CONTEXT_EMPTY);
	}
}
