/* The gates' start, and contexts: set up when created, abandoned when they break, removed when
 * destroyed. This is what the upper layers need of lifecycle.c; gate.h declares the rest. */
#ifndef ALIQUOT_GATE_LIFECYCLE_H
#define ALIQUOT_GATE_LIFECYCLE_H

#include "gate/state.h"

/* The context in the table, set up and added if it is not there; NULL: the table is full. */
struct gate_context *gate_find_or_add_context(struct gates *all, CUcontext handle);

#endif
