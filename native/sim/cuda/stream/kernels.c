/* This process's kernels on each GPU, from their issue to their end.
 *
 * The engine (machine/engine.h) runs one of them at a time: the one in the stream with the highest
 * priority, and among these the oldest. A kernel that spins runs only if there is no other, and the next
 * kernel replaces it. A spinning kernel that was replaced ends as soon as its value is there. A kernel
 * accesses memory at its end; an address that the GPU cannot access is a fault.
 */
#include "cuda/stream/stream.h"
#include "machine/engine.h"

#include <sys/mman.h>

static struct {
	struct sim_op *first; /* issued and not ended, oldest first */
	struct sim_op *at_engine;
	bool entered; /* the process has submitted a kernel, and not left since */
} gpus[SIM_UNITS];

bool kernel_spins(const struct sim_op *op)
{
	return op->kind == SIM_OP_KERNEL && op->kernel.action == SIM_ACT_WAIT && !op->kernel.seen;
}

static void remove_from(uint32_t gpu, const struct sim_op *op)
{
	struct sim_op **at = &gpus[gpu].first;
	while (*at != op)
		at = &(*at)->behind;
	*at = op->behind;
	if (gpus[gpu].at_engine == op)
		gpus[gpu].at_engine = NULL;
}

void kernels_drop(const struct sim_context *context)
{
	uint32_t gpu = context->gpu;
	if (gpus[gpu].at_engine && gpus[gpu].at_engine->stream->context == context)
		engine_leave(&sim.machine, gpu);
	for (struct sim_op *op = gpus[gpu].first, *next; op; op = next) {
		next = op->behind;
		if (op->stream->context == context)
			remove_from(gpu, op);
	}
}

/* Whether the GPU can access the memory that the kernel uses. */
static bool access_is_legal(const struct sim_op *op)
{
	uint64_t address = op->kernel.address;
	switch (op->kernel.action) {
	case SIM_ACT_WAIT:
		return address % 8 == 0 && range_covers(address, 8, PROT_READ);
	case SIM_ACT_SET:
		return address % 8 == 0 && value_writable(address, 8);
	case SIM_ACT_FAULT:
		return false;
	default:
		return true;
	}
}

/* Ends a kernel. An illegal access ends its context instead: *faulted is that context. */
static void end(uint32_t gpu, struct sim_op *op, uint64_t time, struct sim_context **faulted)
{
	remove_from(gpu, op);
	if (!access_is_legal(op)) {
		*faulted = op->stream->context;
		(*faulted)->fault = CUDA_ERROR_ILLEGAL_ADDRESS;
		return;
	}
	if (op->kernel.action == SIM_ACT_SET)
		__atomic_store_n((uint64_t *)op->kernel.address, op->kernel.value, __ATOMIC_RELEASE);
	stream_finish(op->stream, time);
}

/* Looks at the value that a kernel spins for; true: it is there, or the kernel faulted. */
static bool look(uint32_t gpu, struct sim_op *op, uint64_t *wake, struct sim_context **faulted)
{
	uint64_t now = machine_now();
	if (access_is_legal(op) &&
	    __atomic_load_n((uint64_t *)op->kernel.address, __ATOMIC_ACQUIRE) < op->kernel.value) {
		uint64_t when = now + value_pause(now - op->ready_ns);
		if (when < *wake)
			*wake = when;
		return false;
	}
	op->kernel.seen = true;
	if (op == gpus[gpu].at_engine)
		engine_release(&sim.machine, gpu);
	else
		end(gpu, op, now, faulted);
	return true;
}

static bool look_at_values(uint32_t gpu, uint64_t *wake, struct sim_context **faulted)
{
	struct sim_op *first = gpus[gpu].at_engine ? gpus[gpu].first : NULL;
	for (struct sim_op *op = first; op; op = op->behind)
		if (kernel_spins(op) && look(gpu, op, wake, faulted))
			return true; /* the list may have changed */
	return false;
}

static bool look_at_engine(uint32_t gpu, uint64_t *wake, struct sim_context **faulted)
{
	struct sim_op *op = gpus[gpu].at_engine;
	uint64_t when;
	if (!op)
		return false;
	if (engine_poll(&sim.machine, gpu, &when)) {
		end(gpu, op, when, faulted);
		return true;
	}
	if (when < *wake)
		*wake = when;
	return false;
}

static bool goes_before(const struct sim_op *a, const struct sim_op *b)
{
	if (kernel_spins(a) != kernel_spins(b))
		return kernel_spins(b);
	if (a->stream->priority != b->stream->priority)
		return a->stream->priority < b->stream->priority;
	return a->ready_ns < b->ready_ns;
}

static struct sim_op *best(uint32_t gpu)
{
	struct sim_op *best = gpus[gpu].first;
	for (struct sim_op *op = best; op; op = op->behind)
		if (goes_before(op, best))
			best = op;
	return best;
}

/* Whether another kernel is ready as soon as this one ends. */
static bool has_more(uint32_t gpu, const struct sim_op *op)
{
	if (gpus[gpu].first != op || op->behind)
		return true;
	for (op = op->next; op; op = op->next) {
		if (op->kind == SIM_OP_KERNEL)
			return true;
		if (op->kind != SIM_OP_RECORD && op->kind != SIM_OP_WRITE_VALUE && op->kind != SIM_OP_EMPTY)
			return false;
	}
	return false;
}

/* Submits the kernel that should run now; true: it is not the one that ran before. */
static bool choose(uint32_t gpu)
{
	struct sim_op *op = best(gpu), *now = gpus[gpu].at_engine;
	if (now && !(kernel_spins(now) && op && !kernel_spins(op)))
		return false;
	gpus[gpu].at_engine = op;
	if (op)
		engine_submit(&sim.machine, gpu, op->ready_ns,
		              kernel_spins(op) ? SIM_NEVER : op->kernel.duration_ns, has_more(gpu, op));
	else if (gpus[gpu].entered)
		engine_leave(&sim.machine, gpu);
	gpus[gpu].entered = op;
	return op;
}

void kernels_add(struct sim_op *op, uint64_t *wake)
{
	uint32_t gpu = op->stream->context->gpu;
	struct sim_op **at = &gpus[gpu].first;
	while (*at)
		at = &(*at)->behind;
	*at = op;
	if (choose(gpu))
		*wake = 0;
}

bool kernels_step(uint32_t gpu, uint64_t *wake, struct sim_context **faulted)
{
	return look_at_values(gpu, wake, faulted) || look_at_engine(gpu, wake, faulted) || choose(gpu);
}
