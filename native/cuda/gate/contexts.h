/* The table of contexts, and taking a gate. Nothing here calls the driver, but to ask for the
 * current context. */
#ifndef ALIQUOT_GATE_CONTEXTS_H
#define ALIQUOT_GATE_CONTEXTS_H

#include "gate/state.h"

#define EACH_CONTEXT(context, all)                                                                 \
	for (struct gate_context *context = (all)->contexts,                                           \
	                         *end_ = context + atomic_load(&(all)->context_end);                   \
	     context < end_; context++)

/* Take a gate, and free the slots of its contexts that have ended. Wait for it for `patience_ns` at
 * most, or 5 times as long while processes take turns; false: another thread still has it. */
bool gate_take(struct gate *gate, uint64_t patience_ns);
void gate_give(struct gate *gate);

/* A context in the table, or the calling thread's current one; NULL: it is not there, or has ended.
 */
struct gate_context *gate_find_context(struct gates *all, CUcontext handle);
struct gate_context *gate_current_context(struct gates *all);

/* A new slot for a context, in state ADDING; NULL: the table is full, or the context is in it by
 * now. */
struct gate_context *gate_add_context(struct gates *all, CUcontext handle);

/* Change a context's state, and `only_context` with it. */
void gate_set_state(struct gates *all, struct gate_context *context, enum gate_context_state state);
/* The same, if its state is `from`; false: it is not, and stays. */
bool gate_change_state(struct gates *all, struct gate_context *context,
                       enum gate_context_state from, enum gate_context_state to);

/* There are contexts that are not in the table. */
void gate_set_unknown_contexts(struct gates *all);

#endif
