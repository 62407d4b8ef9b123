/* What to do when a context ends.
 *
 * A file that keeps objects inside contexts registers a function before it makes its first object.
 * When a context ends, context.c runs the registered functions in the order of `enum context_stage`,
 * without knowing which files they are in. The context is still live while they run, so that its streams can
 * finish their work. Registering the same function again changes nothing.
 */
#ifndef SIM_CONTEXT_END_H
#define SIM_CONTEXT_END_H

#include "cuda/core/sim.h"

enum context_stage {
	CONTEXT_END_STREAMS, /* first: afterwards nothing uses the context's memory */
	CONTEXT_END_MODULES,
	CONTEXT_END_ARRAYS,
	CONTEXT_END_RANGES,
	CONTEXT_END_POOLS,
	CONTEXT_STAGES
};

void context_at_end(enum context_stage stage, void (*end)(struct sim_context *context));

/* Runs all registered functions for a context that ends. */
void context_run_end(struct sim_context *context);

#endif
