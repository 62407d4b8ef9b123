#define _GNU_SOURCE
#include "gate.h"

#include "arbiter_call.h"
#include "session.h"

#include <errno.h>
#include <time.h>

#define PAUSE_NS 50000
#define TURNS_PATIENCE 5           /* times as long is waited for the taker while turns are taken */
#define CLOSE_NS UINT64_C(5000000) /* between two closings of one that is alone */
#define RING_NS UINT64_C(10000000) /* between two rings */

struct gates *_Atomic gates_page;

void gates_start(void)
{
	struct gates *all = session_wiped_memory(sizeof(*all));
	const struct aliquot_credit *credit = session_credit();
	if (!all)
		return;
	for (uint32_t i = 0; i < session_limits()->slice_count; i++) {
		all->gates[i].index = i;
		all->gates[i].credit = &credit->slices[i];
		all->gates[i].work = &session_work()[i];
		costs_init(&all->gates[i].costs);
	}
	atomic_store_explicit(&gates_page, all, memory_order_release);
}

struct gates *gates_here(void)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	return all && session_is_open() ? all : NULL;
}

uint64_t gate_now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

CUstreamCaptureMode gate_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (REAL(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

void gate_restrict(CUstreamCaptureMode mode)
{
	if (REAL(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

bool gate_captures(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	return !REAL(cuStreamIsCapturing) ||
	       REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool takes_turns(const struct gate *gate)
{
	return atomic_load_explicit(&gate->credit->pace, memory_order_relaxed) != ALIQUOT_ALONE;
}

/* --- one at a time ------------------------------------------------------------------------------ */

static bool try_take(struct gate *gate)
{
	bool taken = false;
	return atomic_compare_exchange_strong_explicit(&gate->taken, &taken, true, memory_order_acquire,
	                                               memory_order_relaxed);
}

/* Where one has waited in vain the others do not: the taker stands in the driver, or is no more. But
 * while turns are taken it may stand there for want of credit, and who passes it passes the gate. */
static bool wait_to_take(struct gate *gate, uint64_t patience_ns)
{
	struct timespec pause = {.tv_nsec = PAUSE_NS};
	if (patience_ns == 0)
		return false;
	if (takes_turns(gate))
		patience_ns *= TURNS_PATIENCE;
	else if (atomic_load_explicit(&gate->is_stuck, memory_order_relaxed))
		return false;
	for (uint64_t end = gate_now_ns() + patience_ns; gate_now_ns() < end;) {
		nanosleep(&pause, NULL);
		if (try_take(gate))
			return true;
	}
	atomic_store_explicit(&gate->is_stuck, true, memory_order_relaxed);
	return false;
}

bool gate_take(struct gate *gate, uint64_t patience_ns)
{
	if (!try_take(gate) && !wait_to_take(gate, patience_ns))
		return false;
	if (atomic_load(&gate->has_ended))
		gate_tidy_up(gate);
	return true;
}

void gate_give(struct gate *gate)
{
	atomic_store_explicit(&gate->is_stuck, false, memory_order_relaxed);
	atomic_store_explicit(&gate->taken, false, memory_order_release);
}

/* --- before and after a launch ------------------------------------------------------------------ */

/* By a name that means the same through every entry point. */
static CUstream name_of(const struct gate_launch *launch)
{
	if (gate_is_legacy(launch->stream, launch->per_thread))
		return CU_STREAM_LEGACY;
	return gate_is_default(launch->stream) ? CU_STREAM_PER_THREAD : launch->stream;
}

static struct gate_context *context_of(struct gates *all, const struct gate_launch *launch)
{
	CUcontext context = NULL;
	CUresult result = gate_is_default(launch->stream)
	                      ? REAL(cuCtxGetCurrent)(&context)
	                      : REAL(cuStreamGetCtx)(launch->stream, &context);
	return result == CUDA_SUCCESS && context ? gate_know_context(all, context) : NULL;
}

/* A launch that goes on without a gate: a mark in the legacy stream would now come after it. */
static void pass_by(struct gate_context *context)
{
	if (atomic_load_explicit(&context->legacy.owes, memory_order_relaxed))
		atomic_store_explicit(&context->legacy.overtaken, true, memory_order_relaxed);
}

static void prepare(struct gates *all, struct gate_launch *launch)
{
	struct gate_context *context = context_of(all, launch);
	uint32_t state = context ? atomic_load(&context->state) : GATE_CONTEXT_EMPTY;
	if (state == GATE_CONTEXT_PLAIN)
		gate_place_plain(context, launch->stream, launch->per_thread);
	if (state != GATE_CONTEXT_GATED)
		return;
	struct gate *gate = launch->gate = context->gate;
	if (!gate_take(gate, GATE_PATIENCE_NS)) {
		pass_by(context);
		gate_add(&gate->work->launches, 1);
		return;
	}
	struct gate_stream *stream = NULL;
	if (atomic_load(&context->state) == GATE_CONTEXT_GATED)
		stream = gate_place(gate, context, launch->stream, launch->per_thread);
	if (stream)
		quantum_add(gate, stream, launch);
	gate_give(gate);
}

/* Where there are several contexts, the current one tells whose default stream it is. */
static bool is_free_after_all(struct gates *all, const struct gate_launch *launch)
{
	if (!gate_is_default(launch->stream) || atomic_load(&all->only))
		return false;
	struct gate_stream *place = gate_find_default(all, gate_current_context(all), launch->stream,
	                                              launch->per_thread);
	return gate_is_free_at(place, launch->key, launch->is_graph);
}

void gate_before(struct gate_launch *launch)
{
	struct gates *all = gates_here();
	if (!all || is_free_after_all(all, launch))
		return;
	int before = errno;
	CUstreamCaptureMode mode = gate_relax();
	if (!gate_captures(name_of(launch)))
		prepare(all, launch);
	gate_restrict(mode);
	errno = before;
}

static void mark_at_once(const struct gate_launch *launch)
{
	if (!gate_take(launch->gate, GATE_PATIENCE_NS))
		return;
	CUstreamCaptureMode mode = gate_relax();
	quantum_mark(launch->gate, launch->at_once);
	gate_restrict(mode);
	gate_give(launch->gate);
}

static void ring(struct gate *gate)
{
	uint64_t now = gate_now_ns(), before = atomic_load(&gate->rang_ns);
	if (now - before >= RING_NS && atomic_compare_exchange_strong(&gate->rang_ns, &before, now))
		arbiter_ring();
}

/* One that stands alone or is full gets nothing more: with its mark in, its end is seen when it comes,
 * whatever the program does next. */
static void close_full(struct gate *gate)
{
	if (!gate_take(gate, 0))
		return;
	CUstreamCaptureMode mode = gate_relax();
	if (gate->is_solo || !gate_has_room(gate, ALIQUOT_TURNS, 1))
		quantum_close(gate);
	gate_restrict(mode);
	gate_give(gate);
}

CUresult gate_after(const struct gate_launch *launch, CUresult result)
{
	int before = errno;
	if (launch->at_once)
		mark_at_once(launch);
	if (launch->gate && takes_turns(launch->gate))
		close_full(launch->gate);
	if (launch->gate && atomic_load_explicit(&launch->gate->credit->ring, memory_order_relaxed))
		ring(launch->gate);
	if (result != CUDA_SUCCESS)
		gate_failed(result);
	errno = before;
	return result;
}

/* --- other calls -------------------------------------------------------------------------------- */

static void close_all(struct gates *all, bool always)
{
	int before = errno;
	CUstreamCaptureMode mode = gate_relax();
	uint32_t open = atomic_load(&all->open);
	for (uint32_t i = 0; i < ALIQUOT_MAX_GPUS; i++) {
		struct gate *gate = &all->gates[i];
		if (!(open >> i & 1) || !(always || takes_turns(gate)) || !gate_take(gate, 0))
			continue;
		quantum_close(gate);
		gate_give(gate);
		if (atomic_load_explicit(&gate->credit->ring, memory_order_relaxed))
			ring(gate);
	}
	gate_restrict(mode);
	errno = before;
}

static bool any_takes_turns(struct gates *all)
{
	uint32_t open = atomic_load_explicit(&all->open, memory_order_relaxed);
	for (uint32_t i = 0; open >> i; i++)
		if (open >> i & 1 && takes_turns(&all->gates[i]))
			return true;
	return false;
}

void gate_closing_always(void)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	if (all && atomic_load_explicit(&all->open, memory_order_relaxed))
		close_all(all, true);
}

static void mark_legacy(struct gate_context *context)
{
	if (atomic_load(&context->state) != GATE_CONTEXT_GATED ||
	    !atomic_load_explicit(&context->legacy.owes, memory_order_relaxed))
		return;
	if (!gate_take(context->gate, 0)) {
		pass_by(context);
		return;
	}
	quantum_mark(context->gate, &context->legacy);
	gate_give(context->gate);
}

void gate_beside(void)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	if (!all || !atomic_load_explicit(&all->open, memory_order_relaxed) ||
	    !atomic_load_explicit(&all->has_blocking, memory_order_relaxed))
		return;
	int before = errno;
	CUstreamCaptureMode mode = gate_relax();
	for (uint32_t i = 0; i < atomic_load(&all->context_end); i++)
		mark_legacy(&all->contexts[i]);
	gate_restrict(mode);
	errno = before;
}

/* Alone, too, a process that waits for long is to be told from one that has nothing to do. */
static bool is_due(struct gates *all)
{
	uint64_t now = gate_now_ns(), before = atomic_load(&all->closed_ns);
	return now - before >= CLOSE_NS &&
	       atomic_compare_exchange_strong(&all->closed_ns, &before, now);
}

void gate_closing(void)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	if (!all || !atomic_load_explicit(&all->open, memory_order_relaxed))
		return;
	if (any_takes_turns(all))
		close_all(all, false);
	else if (is_due(all))
		close_all(all, true);
	else
		gate_beside();
}

void gate_blocking_stream(void)
{
	struct gates *all = gates_here();
	if (all)
		atomic_store_explicit(&all->has_blocking, true, memory_order_relaxed);
}

void gate_forget_key(uint64_t key)
{
	struct gates *all = gates_here();
	for (uint32_t i = 0; all && i < session_limits()->slice_count; i++)
		cost_forget(&all->gates[i].costs, key);
}
