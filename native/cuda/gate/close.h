/* Closing quanta and marking streams because of calls other than launches, such as synchronization.
 * This is what the upper layers need of close.c; gate.h declares the rest. */
#ifndef ALIQUOT_GATE_CLOSE_H
#define ALIQUOT_GATE_CLOSE_H

#include "gate/state.h"

/* Tell the arbiter that this process is at work, if it asks for that (credit.h: ring). */
void gate_ring_if_asked(struct gate *gate);

/* The calling thread puts work into a stream of the context without having the gate: from now on a
 * mark in the legacy stream would be a barrier. */
void gate_overtake_legacy(struct gate_context *context);

/* Insert a stream's mark, if it is unmarked, and remove it from the table: nobody touches it then.
 */
void gate_mark_and_remove_stream(struct gates *all, uint64_t key);

#endif
