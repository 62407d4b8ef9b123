#include "gate/quantum.h"

#include "gate/base.h"
#include "gate/count.h"
#include "gate/insert.h"

/* The work page holds ALIQUOT_QUANTA quanta; a process stays well within. */
#define AHEAD_MOST (ALIQUOT_QUANTA / 2)
/* Graph launches of unknown cost in one quantum, at most: each may take very long. */
#define UNKNOWN_GRAPHS 4u

/* --- learning --------------------------------------------------------------------------------- */

/* Learn from the arbiter's timings. One that does not advance both figures is only a new beginning.
 */
static void learn_from_arbiter(struct gate *gate)
{
	const struct aliquot_credit_slice *credit = gate->credit;
	uint32_t timed = atomic_load_explicit(&credit->timed, memory_order_acquire);
	if (timed - gate->timings_read > ALIQUOT_TIMINGS)
		gate->timings_read = timed - ALIQUOT_TIMINGS;
	for (; gate->timings_read != timed; gate->timings_read++) {
		const struct aliquot_timing *timing = &credit
		                                           ->timings[gate->timings_read % ALIQUOT_TIMINGS];
		uint64_t quantum = atomic_load_explicit(&timing->quantum, memory_order_acquire);
		uint64_t busy_ns = atomic_load_explicit(&timing->busy_ns, memory_order_acquire);
		uint32_t since = atomic_load_explicit(&credit->timed, memory_order_relaxed) -
		                 gate->timings_read;
		if (since >= ALIQUOT_TIMINGS) { /* the arbiter may have overwritten it meanwhile */
			gate->timed_busy_ns = UINT64_MAX;
			continue;
		}
		if (quantum > gate->timed_quantum && busy_ns > gate->timed_busy_ns)
			cost_learn(&gate->costs, gate->timed_quantum + 1, quantum,
			           busy_ns - gate->timed_busy_ns);
		gate->timed_quantum = quantum;
		gate->timed_busy_ns = busy_ns;
	}
}

/* Learn from our own look at the marks while the process is alone: then the arbiter measures
 * nothing. If the GPU has not finished what was closed at the last look, it was busy all the time
 * since. */
static void learn_by_looking(struct gate *gate, uint32_t pace)
{
	uint64_t now = gate_now_ns();
	gate->done = aliquot_work_done(gate->work, gate->done);
	if (pace != ALIQUOT_ALONE) {
		gate->looked_ns = 0;
		return;
	}
	bool was_busy = gate->looked_ns && gate->done < gate->looked_closed;
	if (was_busy && gate->done == gate->looked_done)
		return;
	if (was_busy)
		cost_learn(&gate->costs, gate->looked_done + 1, gate->done, now - gate->looked_ns);
	gate->looked_ns = now;
	gate->looked_done = gate->done;
	gate->looked_closed = gate->closed;
}

/* --- opening and closing ---------------------------------------------------------------------- */

/* Whether the work page has a place for the next quantum. */
static bool has_place_for_next(struct gate *gate)
{
	if (gate->opened - gate->done >= AHEAD_MOST)
		gate->done = aliquot_work_done(gate->work, gate->done);
	return gate->opened - gate->done < AHEAD_MOST;
}

static uint64_t launches_of(const struct gate *gate)
{
	return atomic_load_explicit(&gate->work->launches, memory_order_relaxed);
}

/* Launches that the fast path only numbered count as launches of unknown cost. */
static void count_numbered(struct gate *gate)
{
	uint64_t all = launches_of(gate) - gate->first_launch;
	uint64_t counted = atomic_load_explicit(&gate->counted, memory_order_relaxed);
	if (all <= counted)
		return;
	gate_add(&gate->counted, all - counted);
	gate_add(&gate->unknown_launches, all - counted);
	gate_add(&gate->spent_ns,
	         (all - counted) * atomic_load_explicit(&gate->costs.unknown_ns, memory_order_relaxed));
	atomic_store_explicit(&gate->key, GATE_MIXED, memory_order_relaxed);
}

/* The number of the launch that no longer fits into a quantum opened now. */
static uint64_t alone_until(const struct gate *gate)
{
	uint32_t pace = atomic_load_explicit(&gate->credit->pace, memory_order_relaxed);
	uint32_t each = atomic_load_explicit(&gate->costs.unknown_ns, memory_order_relaxed);
	if (pace != ALIQUOT_ALONE)
		return 0;
	return launches_of(gate) + gate_budget(gate, pace) / (each ? each : 1) + 1;
}

static void open_next(struct gate *gate, uint64_t key)
{
	INVARIANT(gate_is_mine(gate));
	INVARIANT(atomic_load(&gate->open_quantum) == 0 && gate->closed == gate->opened);
	uint64_t quantum = ++gate->opened;
	gate->first_launch = launches_of(gate);
	gate->used_count = 0;
	gate->is_solo = false;
	gate->unknown_graphs = 0;
	atomic_store_explicit(&gate->spent_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&gate->unknown_launches, 0, memory_order_relaxed);
	atomic_store_explicit(&gate->counted, 0, memory_order_relaxed);
	atomic_store_explicit(&gate->alone_until, alone_until(gate), memory_order_relaxed);
	atomic_store_explicit(&gate->key, key, memory_order_relaxed);
	atomic_store_explicit(&gate->work->opened, quantum, memory_order_release);
	atomic_store_explicit(&gate->open_quantum, quantum, memory_order_release);
	atomic_fetch_or(&atomic_load(&gates_page)->open_gates, 1u << gate->index);
}

static uint32_t at_most(uint64_t value)
{
	return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static void publish(struct gate *gate, uint64_t quantum)
{
	uint64_t spent = atomic_load_explicit(&gate->spent_ns, memory_order_relaxed);
	uint64_t unknown = atomic_load_explicit(&gate->unknown_launches, memory_order_relaxed);
	uint64_t guessed = unknown *
	                   atomic_load_explicit(&gate->costs.unknown_ns, memory_order_relaxed);
	struct aliquot_quantum *published = &gate->work->quanta[quantum % ALIQUOT_QUANTA];
	struct cost_quantum expected = {
		.quantum = quantum,
		.key = atomic_load_explicit(&gate->key, memory_order_relaxed),
		.expected_ns = spent,
		.known_ns = spent > guessed ? spent - guessed : 0,
		.launches = at_most(launches_of(gate) - gate->first_launch),
		.unknown = at_most(unknown),
	};
	cost_remember(&gate->costs, &expected);
	atomic_store_explicit(&published->marks, gate->marks_inserted, memory_order_relaxed);
	atomic_store_explicit(&published->expected_ns, at_most(cost_as_time(&gate->costs, spent)),
	                      memory_order_relaxed);
	gate->closed = quantum;
	atomic_store_explicit(&gate->work->closed, quantum, memory_order_release);
}

void quantum_close(struct gate *gate)
{
	uint64_t quantum = atomic_load_explicit(&gate->open_quantum, memory_order_relaxed);
	INVARIANT(gate_is_mine(gate) && gate_is_relaxed());
	INVARIANT(gate->done <= gate->closed && gate->closed <= gate->opened);
	INVARIANT(quantum == 0 || quantum == gate->opened);
	if (!quantum || !has_place_for_next(gate))
		return;
	count_numbered(gate);
	/* From here on no launch takes the fast path into it. */
	atomic_store_explicit(&gate->open_quantum, 0, memory_order_relaxed);
	atomic_fetch_and(&atomic_load(&gates_page)->open_gates, ~(1u << gate->index));
	for (uint32_t i = 0; i < gate->used_count; i++)
		gate_insert_mark(gate, gate->used[i].stream, gate->used[i].key);
	publish(gate, quantum);
	learn_by_looking(gate, atomic_load_explicit(&gate->credit->pace, memory_order_relaxed));
}

/* --- a launch --------------------------------------------------------------------------------- */

/* Put the stream into the open quantum's list: it gets a mark when the quantum is closed. False:
 * the list is full. */
static bool list_stream(struct gate *gate, struct gate_stream *stream, uint64_t quantum)
{
	if (stream->listed_quantum != quantum && gate->used_count == GATE_USED)
		return false;
	if (stream->listed_quantum != quantum)
		gate->used[gate->used_count++] =
			(struct gate_used){stream, atomic_load_explicit(&stream->key, memory_order_relaxed)};
	stream->listed_quantum = quantum;
	atomic_store_explicit(&stream->overtaken, false, memory_order_relaxed);
	atomic_store_explicit(&stream->unmarked, true, memory_order_relaxed);
	return true;
}

/* Whether the launch must be alone in its quantum, to measure it. While no other process wants the
 * GPU, only graphs are measured: each may take long. */
static bool must_be_solo(const struct gate_launch *launch, struct cost *cost, uint32_t pace)
{
	if (pace == ALIQUOT_ALONE && !launch->is_graph)
		return false;
	uint32_t number = atomic_load_explicit(&cost->launches, memory_order_relaxed) + 1;
	atomic_store_explicit(&cost->launches, number, memory_order_relaxed);
	return cost_is_due(number) && (pace != ALIQUOT_ALONE || !cost_of(cost));
}

static bool is_unknown_graph(const struct gate_launch *launch, struct cost *cost)
{
	return launch->is_graph && !cost_of(cost);
}

static bool must_close(const struct gate *gate, const struct gate_launch *launch, struct cost *cost,
                       uint32_t pace)
{
	uint64_t open = atomic_load_explicit(&gate->open_quantum, memory_order_relaxed);
	if (!open || launches_of(gate) == gate->first_launch)
		return false;
	bool was_alone = atomic_load_explicit(&gate->alone_until, memory_order_relaxed) != 0;
	return gate->is_solo || was_alone != (pace == ALIQUOT_ALONE) ||
	       gate_must_yield(gate, pace, open) ||
	       (is_unknown_graph(launch, cost) && gate->unknown_graphs >= UNKNOWN_GRAPHS) ||
	       !gate_fits(gate, pace, cost_of(cost));
}

void quantum_count_launch(struct gate *gate, struct gate_stream *stream, struct gate_launch *launch)
{
	uint32_t pace = atomic_load_explicit(&gate->credit->pace, memory_order_relaxed);
	learn_from_arbiter(gate);
	if (atomic_load_explicit(&gate->open_quantum, memory_order_relaxed))
		count_numbered(gate);
	uint64_t key = gate_cost_key(gate, launch->key, launch->is_graph);
	struct cost *cost = pace == ALIQUOT_ALONE && !launch->is_graph ? cost_find(&gate->costs, key)
	                                                               : cost_slot(&gate->costs, key);
	bool solo = must_be_solo(launch, cost, pace);
	if (solo || must_close(gate, launch, cost, pace))
		quantum_close(gate);
	if (!atomic_load_explicit(&gate->open_quantum, memory_order_relaxed))
		open_next(gate, key);
	uint64_t open_quantum = atomic_load_explicit(&gate->open_quantum, memory_order_relaxed);
	if (gate_must_mark_legacy_first(stream))
		gate_insert_mark_now(gate, &stream->context->legacy);
	if ((stream->gated_quantum == open_quantum || gate_insert_gate(stream, open_quantum)) &&
	    list_stream(gate, stream, open_quantum)) {
		bool mark_after = stream->mark_each_launch && pace != ALIQUOT_ALONE;
		launch->mark_after = mark_after ? stream : NULL;
		gate->is_solo = solo;
		if (!solo && !mark_after)
			atomic_store_explicit(&stream->prepared, open_quantum, memory_order_relaxed);
	}
	gate->unknown_graphs += is_unknown_graph(launch, cost);
	gate_count(gate, key, cost_of(cost));
	atomic_store_explicit(&gate->last_key, launch->key, memory_order_relaxed);
}
