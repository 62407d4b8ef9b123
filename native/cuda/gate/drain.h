/* Waiting for all work of the process. This is what the upper layers need of drain.c; gate.h declares the
 * rest. */
#ifndef ALIQUOT_GATE_DRAIN_H
#define ALIQUOT_GATE_DRAIN_H

#include "gate/state.h"

/* The program is about to destroy a context, whose state is ENDING: wait until nobody drains it. */
void gate_wait_undrained(struct gates *all, const struct gate_context *context);

#endif
