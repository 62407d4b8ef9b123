/* The functions to run when a context ends. See context_end.h. */
#include "cuda/core/context_end.h"

static void (*stages[CONTEXT_STAGES])(struct sim_context *context);

void context_at_end(enum context_stage stage, void (*end)(struct sim_context *context))
{
	stages[stage] = end;
}

void context_run_end(struct sim_context *context)
{
	for (int stage = 0; stage < CONTEXT_STAGES; stage++)
		if (stages[stage])
			stages[stage](context);
}
