/* Waiting for all work of the process, in every context, from a thread of our own.
 *
 * The program may destroy a context meanwhile. Both sides write, then read, in sequentially consistent order:
 * we `draining` and then the context's state, the thread that destroys it the state and then `draining`. So
 * the driver is not asked to destroy a context that we use. The primary context's work includes that of its
 * green contexts. */
#define _GNU_SOURCE
#include "gate/drain.h"

#include "gate/base.h"
#include "gate/contexts.h"
#include "gate/gate.h"

#include <time.h>

bool gates_have_captures(void)
{
	struct gates *all = gates_here();
	return all && atomic_load(&all->captures) > 0;
}

static bool is_usable(const struct gate_context *context)
{
	uint32_t state = atomic_load(&context->state);
	return state == GATE_CONTEXT_GATED || state == GATE_CONTEXT_PLAIN;
}

static void synchronize(struct gate_context *context)
{
	bool pushed;
	if (!gate_push_context(context, &pushed))
		return;
	REAL(cuCtxSynchronize)(); /* an error is the program's: its next call gets it */
	gate_pop_context(pushed);
}

void gates_drain(void)
{
	struct gates *all = gates_here();
	INVARIANT(gate_is_relaxed());
	if (!all)
		return;
	EACH_CONTEXT (context, all) {
		atomic_store(&all->draining, context);
		if (is_usable(context))
			synchronize(context);
		atomic_store(&all->draining, NULL);
	}
}

void gates_borrow_context(void)
{
	struct gates *all = gates_here();
	if (!all)
		return;
	EACH_CONTEXT (context, all)
		if (is_usable(context) &&
		    REAL(cuCtxSetCurrent)(atomic_load(&context->handle)) == CUDA_SUCCESS)
			return;
}

void gates_return_context(void)
{
	REAL(cuCtxSetCurrent)(NULL);
}

void gate_wait_undrained(struct gates *all, const struct gate_context *context)
{
	struct timespec moment = {.tv_nsec = 1000 * 1000};
	while (atomic_load(&all->draining) == context)
		nanosleep(&moment, NULL);
}
