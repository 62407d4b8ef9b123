#include "gate/contexts.h"

#include "gate/base.h"
#include "gate/marks.h"
#include "gate/pages.h"

struct gate_context *gate_find_context(struct gates *all, CUcontext handle)
{
	EACH_CONTEXT (context, all)
		if (atomic_load_explicit(&context->handle, memory_order_relaxed) == handle &&
		    gate_state_of(context) != GATE_CONTEXT_EMPTY &&
		    gate_state_of(context) != GATE_CONTEXT_ENDED)
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

/* While there is one context, a default stream is found without asking the driver whose it is.
 * Precondition: the lock. */
static void update_only_context(struct gates *all)
{
	struct gate_context *only = NULL;
	unsigned count = atomic_load(&all->has_unknown_contexts);
	EACH_CONTEXT (context, all) {
		uint32_t state = gate_state_of(context);
		count += state != GATE_CONTEXT_EMPTY && state != GATE_CONTEXT_ENDED;
		if (state == GATE_CONTEXT_GATED || state == GATE_CONTEXT_PLAIN)
			only = context;
	}
	atomic_store_explicit(&all->only_context, count == 1 ? only : NULL, memory_order_release);
}

void gate_set_state(struct gates *all, struct gate_context *context, enum gate_context_state state)
{
	gates_lock(all);
	atomic_store(&context->state, state);
	update_only_context(all);
	gates_unlock(all);
}

bool gate_change_state(struct gates *all, struct gate_context *context,
                       enum gate_context_state from, enum gate_context_state to)
{
	gates_lock(all);
	bool is_from = atomic_load(&context->state) == from;
	if (is_from) {
		atomic_store(&context->state, to);
		update_only_context(all);
	}
	gates_unlock(all);
	return is_from;
}

void gate_set_unknown_contexts(struct gates *all)
{
	gates_lock(all);
	atomic_store(&all->has_unknown_contexts, true);
	update_only_context(all);
	gates_unlock(all);
}

struct gate_context *gate_add_context(struct gates *all, CUcontext handle)
{
	struct gate_context *slot = NULL;
	gates_lock(all);
	for (unsigned i = 0; i < GATE_CONTEXTS && !slot && !gate_find_context(all, handle); i++)
		if (atomic_load(&all->contexts[i].state) == GATE_CONTEXT_EMPTY) {
			slot = &all->contexts[i];
			if (i >= atomic_load(&all->context_end))
				atomic_store(&all->context_end, i + 1);
			atomic_store(&slot->handle, handle);
			slot->gate = NULL;
			atomic_store(&slot->state, GATE_CONTEXT_ADDING);
		}
	update_only_context(all);
	gates_unlock(all);
	return slot;
}

/* Precondition: the gate is taken. */
static void free_ended_contexts(struct gate *gate)
{
	struct gates *all = atomic_load(&gates_page);
	atomic_store(&gate->ended_contexts, 0);
	EACH_CONTEXT (context, all) {
		if (gate_state_of(context) != GATE_CONTEXT_ENDED || context->gate != gate)
			continue;
		gate_marks_complete(all, context);
		gate_unmap_pages(context);
		gate_set_state(all, context, GATE_CONTEXT_EMPTY);
	}
}

bool gate_take(struct gate *gate, uint64_t patience_ns)
{
	if (!gate_lock(gate, patience_ns))
		return false;
	if (atomic_load(&gate->ended_contexts))
		free_ended_contexts(gate);
	return true;
}

void gate_give(struct gate *gate)
{
	gate_unlock(gate);
}
