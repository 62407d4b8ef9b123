/* Counting launches into the open quantum, with no lock: the fast path of a launch.
 *
 * Nothing here calls a function, so that a launch's arguments stay in their registers. */
#ifndef ALIQUOT_GATE_COUNT_H
#define ALIQUOT_GATE_COUNT_H

#include "gate/state.h"

/* The expected cost that fits into one quantum. */
ALWAYS_INLINE uint64_t gate_budget(const struct gate *gate, uint32_t pace)
{
	if (pace == ALIQUOT_ALONE)
		return cost_of_time(&gate->costs, GATE_ALONE_NS);
	uint32_t ns = atomic_load_explicit(&gate->credit->quantum_ns, memory_order_relaxed);
	return cost_of_time(&gate->costs, ns ? ns : ALIQUOT_QUANTUM_NS);
}

/* Whether the arbiter wants the GPU back and the open quantum has already started on it. */
ALWAYS_INLINE bool gate_must_yield(const struct gate *gate, uint32_t pace, uint64_t open_quantum)
{
	return pace == ALIQUOT_YIELD &&
	       open_quantum <= atomic_load_explicit(&gate->credit->credit, memory_order_relaxed);
}

/* Two threads that add at the same time may lose one addition. These are estimates, and an atomic
 * addition would cost as much as all the rest. */
ALWAYS_INLINE void gate_add(_Atomic uint64_t *sum, uint64_t part)
{
	atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + part,
	                      memory_order_relaxed);
}

/* Count a launch of this cost (0: unknown) into the open quantum. */
ALWAYS_INLINE void gate_count(struct gate *gate, uint64_t key, uint32_t ns)
{
	gate_add(&gate->work->launches, 1);
	gate_add(&gate->counted, 1);
	if (!ns) {
		ns = atomic_load_explicit(&gate->costs.unknown_ns, memory_order_relaxed);
		gate_add(&gate->unknown_launches, 1);
	}
	gate_add(&gate->spent_ns, ns);
	if (atomic_load_explicit(&gate->key, memory_order_relaxed) != key)
		atomic_store_explicit(&gate->key, GATE_MIXED, memory_order_relaxed);
}

/* Whether one more launch of this cost (0: unknown) fits into the open quantum. */
ALWAYS_INLINE bool gate_fits(const struct gate *gate, uint32_t pace, uint32_t ns)
{
	if (!ns)
		ns = atomic_load_explicit(&gate->costs.unknown_ns, memory_order_relaxed);
	uint64_t spent = atomic_load_explicit(&gate->spent_ns, memory_order_relaxed);
	return spent + ns <= gate_budget(gate, pace);
}

/* The key that a launch's cost is learned under. The same kernel takes different times at different
 * points of a program, and the launch before it tells these points apart. A graph has its own key
 * wherever it is launched. */
ALWAYS_INLINE uint64_t gate_cost_key(const struct gate *gate, uint64_t key, bool is_graph)
{
	uint64_t last = atomic_load_explicit(&gate->last_key, memory_order_relaxed);
	return is_graph ? key : key ^ (last << 21 | last >> 43);
}

/* Count a launch into the open quantum, if it needs nothing else. */
ALWAYS_INLINE bool gate_count_fast(struct gate *gate, uint64_t open_quantum, uint64_t key,
                                   bool is_graph)
{
	const struct aliquot_credit_slice *credit = gate->credit;
	uint32_t pace = atomic_load_explicit(&credit->pace, memory_order_relaxed);
	if (atomic_load_explicit(&credit->ring, memory_order_relaxed))
		return false;
	/* Alone, a quantum is a number of launches of any kind. */
	if (pace == ALIQUOT_ALONE && !is_graph) {
		uint64_t number = atomic_load_explicit(&gate->work->launches, memory_order_relaxed);
		if (number >= atomic_load_explicit(&gate->alone_until, memory_order_relaxed))
			return false;
		atomic_store_explicit(&gate->work->launches, number + 1, memory_order_relaxed);
		return true;
	}
	if (pace != ALIQUOT_ALONE && atomic_load_explicit(&gate->alone_until, memory_order_relaxed))
		return false; /* it was opened alone, and is too long */
	uint64_t cost_key = gate_cost_key(gate, key, is_graph);
	struct cost *cost = cost_find(&gate->costs, cost_key);
	uint32_t ns = cost_of(cost);
	if ((is_graph && !ns) || !gate_fits(gate, pace, ns))
		return false;
	if (pace != ALIQUOT_ALONE) {
		uint32_t number = cost ? atomic_load_explicit(&cost->launches, memory_order_relaxed) + 1
		                       : 1;
		if (cost_is_due(number) || gate_must_yield(gate, pace, open_quantum))
			return false;
		atomic_store_explicit(&cost->launches, number, memory_order_relaxed);
	}
	gate_count(gate, cost_key, ns);
	atomic_store_explicit(&gate->last_key, key, memory_order_relaxed);
	return true;
}

/* Count a launch into the stream in this slot and return true if it needs nothing else. NULL: the
 * stream has no slot. */
ALWAYS_INLINE bool gate_fast_path_at(struct gate_stream *stream, uint64_t key, bool is_graph)
{
	if (!stream)
		return false;
	struct gate *gate = atomic_load_explicit(&stream->gate, memory_order_relaxed);
	if (!gate)
		return true;
	uint64_t open_quantum = atomic_load_explicit(&gate->open_quantum, memory_order_relaxed);
	if (open_quantum == 0 ||
	    atomic_load_explicit(&stream->prepared, memory_order_relaxed) != open_quantum ||
	    gate_must_mark_legacy_first(stream))
		return false;
	return gate_count_fast(gate, open_quantum, key, is_graph);
}

#endif
