/* Quanta: opened, filled, closed; and what is learned from how long they took. See gate.h. */
#define _GNU_SOURCE
#include "gate.h"

#include <limits.h>

/* A page tells of so many quanta; we stay well within. */
#define AHEAD_MOST (ALIQUOT_QUANTA / 2)
/* In one quantum, at the most: how long one takes is anybody's guess. */
#define UNKNOWN_GRAPHS 4u

/* --- into a stream ------------------------------------------------------------------------------ */

static CUresult write_mark(struct gate *gate, const struct gate_stream *stream)
{
	struct aliquot_mark *word = &gate->work->marks[stream->mark];
	uint64_t asked = atomic_load_explicit(&word->asked, memory_order_relaxed) + 1;
	atomic_store_explicit(&word->asked, asked, memory_order_release);
	CUresult result = REAL(
		cuStreamWriteValue64_v2)(stream->handle,
		                         stream->context->marks + stream->mark * sizeof(*word), asked, 0);
	if (result == CUDA_SUCCESS)
		gate->marks++;
	else
		atomic_store_explicit(&word->asked, asked - 1, memory_order_release);
	return result;
}

/* Another thread's default stream cannot be named here. */
static bool is_out_of_reach(struct gate_stream *stream)
{
	if (!stream->thread || stream->thread == gate_thread())
		return false;
	stream->at_once = true;
	return true;
}

/* Precondition: it is being touched. */
static CUresult mark(struct gate *gate, struct gate_stream *stream)
{
	CUresult result = CUDA_SUCCESS;
	bool pushed;
	if (gate_push(stream->context, &pushed) &&
	    !atomic_load_explicit(&stream->overtaken, memory_order_relaxed) &&
	    !is_out_of_reach(stream) && !gate_captures(stream->handle) && gate_take_mark(gate, stream))
		result = write_mark(gate, stream);
	gate_pop(pushed);
	atomic_store_explicit(&stream->free, 0, memory_order_relaxed);
	atomic_store_explicit(&stream->owes, false, memory_order_relaxed);
	return result;
}

static void mark_known(struct gate *gate, struct gate_stream *stream, uint64_t key)
{
	if (!gate_touch(gate, stream, key))
		return;
	struct gate_context *context = stream->context;
	CUresult result = CUDA_SUCCESS;
	if (atomic_load_explicit(&stream->owes, memory_order_relaxed))
		result = mark(gate, stream);
	gate_touch_end(gate);
	if (gate_breaks(result))
		gate_context_broken(context);
}

void quantum_mark(struct gate *gate, struct gate_stream *stream)
{
	mark_known(gate, stream, atomic_load(&stream->key));
}

/* What is put into a blocking stream comes after the legacy one's mark. */
static void mark_beside(struct gate *gate, struct gate_stream *stream)
{
	if (gate_must_mark_beside(stream))
		quantum_mark(gate, &stream->context->legacy);
}

/* The program is about to launch into it: it is not being ended, and not captured. */
static bool put_gate(struct gate_stream *stream, uint64_t quantum)
{
	struct gate_context *context = stream->context;
	bool pushed;
	if (!gate_push(context, &pushed))
		return false;
	CUresult result = REAL(cuStreamWaitValue64_v2)(stream->handle, context->credit_word, quantum,
	                                               CU_STREAM_WAIT_VALUE_GEQ);
	gate_pop(pushed);
	if (gate_breaks(result))
		gate_context_broken(context);
	if (result == CUDA_SUCCESS)
		stream->gated = quantum;
	return result == CUDA_SUCCESS;
}

/* --- learning ----------------------------------------------------------------------------------- */

/* The arbiter's timings; one that does not advance both figures only begins anew. */
static void learn_from_arbiter(struct gate *gate)
{
	const struct aliquot_credit_slice *credit = gate->credit;
	uint32_t timed = atomic_load_explicit(&credit->timed, memory_order_acquire);
	if (timed - gate->timed > ALIQUOT_TIMINGS)
		gate->timed = timed - ALIQUOT_TIMINGS;
	for (; gate->timed != timed; gate->timed++) {
		const struct aliquot_timing *timing = &credit->timings[gate->timed % ALIQUOT_TIMINGS];
		uint64_t quantum = atomic_load_explicit(&timing->quantum, memory_order_acquire);
		uint64_t busy_ns = atomic_load_explicit(&timing->busy_ns, memory_order_acquire);
		uint32_t since = atomic_load_explicit(&credit->timed, memory_order_relaxed) - gate->timed;
		if (since >= ALIQUOT_TIMINGS) { /* it may have been overwritten while we read */
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

/* Our own look, while we are alone and nobody times us. The GPU was busy all the time since the last
 * one if it still has what was asked for by then. */
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

/* --- opening and closing ------------------------------------------------------------------------ */

/* The next quantum can be told of. */
static bool may_go_on(struct gate *gate)
{
	if (gate->opened - gate->done >= AHEAD_MOST)
		gate->done = aliquot_work_done(gate->work, gate->done);
	return gate->opened - gate->done < AHEAD_MOST;
}

static uint64_t launches_of(const struct gate *gate)
{
	return atomic_load_explicit(&gate->work->launches, memory_order_relaxed);
}

/* Launches that were only numbered count as unknown ones. */
static void count_the_rest(struct gate *gate)
{
	uint64_t all = launches_of(gate) - gate->first_launch;
	uint64_t counted = atomic_load_explicit(&gate->counted, memory_order_relaxed);
	if (all <= counted)
		return;
	gate_add(&gate->counted, all - counted);
	gate_add(&gate->unknown, all - counted);
	gate_add(&gate->spent_ns,
	         (all - counted) * atomic_load_explicit(&gate->costs.unknown_ns, memory_order_relaxed));
	atomic_store_explicit(&gate->key, GATE_MIXED, memory_order_relaxed);
}

/* The first launch that has no room in a quantum that is opened now. */
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
	uint64_t quantum = ++gate->opened;
	gate->first_launch = launches_of(gate);
	gate->used_count = 0;
	gate->is_solo = false;
	gate->graphs = 0;
	atomic_store_explicit(&gate->spent_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&gate->unknown, 0, memory_order_relaxed);
	atomic_store_explicit(&gate->counted, 0, memory_order_relaxed);
	atomic_store_explicit(&gate->alone_until, alone_until(gate), memory_order_relaxed);
	atomic_store_explicit(&gate->key, key, memory_order_relaxed);
	atomic_store_explicit(&gate->work->opened, quantum, memory_order_release);
	atomic_store_explicit(&gate->open, quantum, memory_order_release);
	atomic_fetch_or(&atomic_load(&gates_page)->open, 1u << gate->index);
}

static uint32_t at_most(uint64_t value)
{
	return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static void publish(struct gate *gate, uint64_t quantum)
{
	uint64_t spent = atomic_load_explicit(&gate->spent_ns, memory_order_relaxed);
	uint64_t unknown = atomic_load_explicit(&gate->unknown, memory_order_relaxed);
	uint64_t guessed = unknown *
	                   atomic_load_explicit(&gate->costs.unknown_ns, memory_order_relaxed);
	struct aliquot_quantum *told = &gate->work->quanta[quantum % ALIQUOT_QUANTA];
	struct cost_quantum kept = {
		.quantum = quantum,
		.key = atomic_load_explicit(&gate->key, memory_order_relaxed),
		.expected_ns = spent,
		.known_ns = spent > guessed ? spent - guessed : 0,
		.launches = at_most(launches_of(gate) - gate->first_launch),
		.unknown = at_most(unknown),
	};
	cost_remember(&gate->costs, &kept);
	atomic_store_explicit(&told->marks, gate->marks, memory_order_relaxed);
	atomic_store_explicit(&told->expected_ns, at_most(cost_as_time(&gate->costs, spent)),
	                      memory_order_relaxed);
	gate->closed = quantum;
	atomic_store_explicit(&gate->work->closed, quantum, memory_order_release);
}

void quantum_close(struct gate *gate)
{
	uint64_t quantum = atomic_load_explicit(&gate->open, memory_order_relaxed);
	if (!quantum || !may_go_on(gate))
		return;
	count_the_rest(gate);
	/* Nobody launches into it any more without coming here first. */
	atomic_store_explicit(&gate->open, 0, memory_order_relaxed);
	atomic_fetch_and(&atomic_load(&gates_page)->open, ~(1u << gate->index));
	for (uint32_t i = 0; i < gate->used_count; i++)
		mark_known(gate, gate->used[i].stream, gate->used[i].key);
	publish(gate, quantum);
	learn_by_looking(gate, atomic_load_explicit(&gate->credit->pace, memory_order_relaxed));
}

/* --- a launch ----------------------------------------------------------------------------------- */

/* Into the open quantum's list, for its mark; false: the list is full. */
static bool list(struct gate *gate, struct gate_stream *stream, uint64_t quantum)
{
	if (stream->listed != quantum && gate->used_count == GATE_USED)
		return false;
	if (stream->listed != quantum)
		gate->used[gate->used_count++] =
			(struct gate_used){stream, atomic_load_explicit(&stream->key, memory_order_relaxed)};
	stream->listed = quantum;
	atomic_store_explicit(&stream->overtaken, false, memory_order_relaxed);
	atomic_store_explicit(&stream->owes, true, memory_order_relaxed);
	return true;
}

/* Whether the launch is to be alone in its quantum, so that it is known what it takes. While nobody
 * else wants the GPU that matters for graphs alone: each may be long. */
static bool stands_alone(const struct gate_launch *launch, struct cost *cost, uint32_t pace)
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
	uint64_t open = atomic_load_explicit(&gate->open, memory_order_relaxed);
	if (!open || launches_of(gate) == gate->first_launch)
		return false;
	bool was_alone = atomic_load_explicit(&gate->alone_until, memory_order_relaxed) != 0;
	return gate->is_solo || was_alone != (pace == ALIQUOT_ALONE) ||
	       gate_must_yield(gate, pace, open) ||
	       (is_unknown_graph(launch, cost) && gate->graphs >= UNKNOWN_GRAPHS) ||
	       !gate_has_room(gate, pace, cost_of(cost));
}

void quantum_add(struct gate *gate, struct gate_stream *stream, struct gate_launch *launch)
{
	uint32_t pace = atomic_load_explicit(&gate->credit->pace, memory_order_relaxed);
	learn_from_arbiter(gate);
	if (atomic_load_explicit(&gate->open, memory_order_relaxed))
		count_the_rest(gate);
	uint64_t key = gate_cost_key(gate, launch->key, launch->is_graph);
	struct cost *cost = pace == ALIQUOT_ALONE && !launch->is_graph ? cost_find(&gate->costs, key)
	                                                               : cost_place(&gate->costs, key);
	bool alone = stands_alone(launch, cost, pace);
	if (alone || must_close(gate, launch, cost, pace))
		quantum_close(gate);
	if (!atomic_load_explicit(&gate->open, memory_order_relaxed))
		open_next(gate, key);
	uint64_t open = atomic_load_explicit(&gate->open, memory_order_relaxed);
	mark_beside(gate, stream);
	if ((stream->gated == open || put_gate(stream, open)) && list(gate, stream, open)) {
		bool at_once = stream->at_once && pace != ALIQUOT_ALONE;
		launch->at_once = at_once ? stream : NULL;
		gate->is_solo = alone;
		if (!alone && !at_once)
			atomic_store_explicit(&stream->free, open, memory_order_relaxed);
	}
	gate->graphs += is_unknown_graph(launch, cost);
	gate_count(gate, key, cost_of(cost));
	atomic_store_explicit(&gate->before, launch->key, memory_order_relaxed);
}
