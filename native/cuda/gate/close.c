/* Closing quanta, and marking streams ahead of that, because of calls other than launches. */
#include "gate/close.h"

#include "arbiter_call.h"
#include "gate/base.h"
#include "gate/contexts.h"
#include "gate/gate.h"
#include "gate/insert.h"
#include "gate/quantum.h"
#include "gate/streams.h"

#include <errno.h>

#define CLOSE_NS UINT64_C(5000000) /* at least, between two closings of a process that is alone */
#define RING_NS UINT64_C(10000000) /* at least, between two rings */

void gate_ring_if_asked(struct gate *gate)
{
	if (!atomic_load_explicit(&gate->credit->ring, memory_order_relaxed))
		return;
	uint64_t now = gate_now_ns(), before = atomic_load(&gate->rang_ns);
	if (now - before >= RING_NS && atomic_compare_exchange_strong(&gate->rang_ns, &before, now))
		arbiter_ring();
}

/* --- closing ---------------------------------------------------------------------------------- */

/* `always`: also those of slices whose processes do not take turns. */
static void close_open_gates(struct gates *all, bool always)
{
	int before = errno;
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	uint32_t open_gates = atomic_load(&all->open_gates);
	for (uint32_t i = 0; i < ALIQUOT_MAX_GPUS; i++) {
		struct gate *gate = &all->gates[i];
		if (!(open_gates >> i & 1) || !(always || gate_takes_turns(gate)) || !gate_take(gate, 0))
			continue;
		quantum_close(gate);
		gate_give(gate);
		gate_ring_if_asked(gate);
	}
	gate_restore_capture_mode(mode);
	errno = before;
}

void gate_close_all(void)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	if (all && atomic_load_explicit(&all->open_gates, memory_order_relaxed))
		close_open_gates(all, true);
}

static bool any_takes_turns(struct gates *all)
{
	uint32_t open_gates = atomic_load_explicit(&all->open_gates, memory_order_relaxed);
	for (uint32_t i = 0; open_gates >> i; i++)
		if (open_gates >> i & 1 && gate_takes_turns(&all->gates[i]))
			return true;
	return false;
}

/* A process that is alone closes now and then too, so that the arbiter can tell one that waits for
 * long from one that has nothing to do. */
static bool is_close_due(struct gates *all)
{
	uint64_t now = gate_now_ns(), before = atomic_load(&all->closed_ns);
	return now - before >= CLOSE_NS &&
	       atomic_compare_exchange_strong(&all->closed_ns, &before, now);
}

void gate_close_before_wait(void)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	if (!all || !atomic_load_explicit(&all->open_gates, memory_order_relaxed))
		return;
	if (any_takes_turns(all))
		close_open_gates(all, false);
	else if (is_close_due(all))
		close_open_gates(all, true);
	else
		gate_mark_legacy_streams();
}

/* --- marking ---------------------------------------------------------------------------------- */

void gate_overtake_legacy(struct gate_context *context)
{
	if (atomic_load_explicit(&context->legacy.unmarked, memory_order_relaxed))
		atomic_store_explicit(&context->legacy.overtaken, true, memory_order_relaxed);
}

static void mark_legacy(struct gate_context *context)
{
	if (atomic_load(&context->state) != GATE_CONTEXT_GATED ||
	    !atomic_load_explicit(&context->legacy.unmarked, memory_order_relaxed))
		return;
	if (!gate_take(context->gate, 0)) {
		gate_overtake_legacy(context);
		return;
	}
	gate_insert_mark_now(context->gate, &context->legacy);
	gate_give(context->gate);
}

void gate_mark_legacy_streams(void)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	if (!all || !atomic_load_explicit(&all->open_gates, memory_order_relaxed) ||
	    !atomic_load_explicit(&all->has_blocking_streams, memory_order_relaxed))
		return;
	int before = errno;
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	for (uint32_t i = 0; i < atomic_load(&all->context_end); i++)
		mark_legacy(&all->contexts[i]);
	gate_restore_capture_mode(mode);
	errno = before;
}

void gate_blocking_stream_created(void)
{
	struct gates *all = gates_here();
	if (all)
		atomic_store_explicit(&all->has_blocking_streams, true, memory_order_relaxed);
}

void gate_mark_and_remove_stream(struct gates *all, uint64_t key)
{
	struct gate_stream *slot = gate_find_stream(all, key);
	if (!slot)
		return;
	int before = errno;
	struct gate *gate = atomic_load(&slot->gate);
	if (gate && atomic_load(&slot->unmarked) && gate_take(gate, GATE_PATIENCE_NS)) {
		CUstreamCaptureMode mode = gate_relax_capture_mode();
		gate_insert_mark_now(gate, slot);
		gate_restore_capture_mode(mode);
		gate_give(gate);
	}
	gate_remove_stream(all, key);
	errno = before;
}

void gate_stream_ending(CUstream stream)
{
	struct gates *all = gates_here();
	if (all && !gate_is_default(stream))
		gate_mark_and_remove_stream(all, (uint64_t)(uintptr_t)stream);
}
