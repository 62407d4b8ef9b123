#include "turns_parts.h"
#include "turns_work.h"

#define WINDOW_LEAST_NS (1 * MILLISECOND_NS)
/* Work that the holder has credit for: enough to bridge two looks. */
#define AHEAD_NS (1 * MILLISECOND_NS)
/* The same where a latency slice may come at any time, and waits for what is in hand. */
#define AHEAD_BESIDE_LATENCY_NS (MILLISECOND_NS / 2)
#define QUANTUM_BESIDE_LATENCY_NS 300000u
/* Later than this beyond what was expected, it may be waiting for a sibling on another GPU. */
#define HELP_NS (1 * MILLISECOND_NS)
/* How long a holder may take to come to its end: twice what it took lately, within these. */
#define BOUND_LEAST_NS (50 * MILLISECOND_NS)
#define BOUND_MOST_NS (1000 * MILLISECOND_NS)
/* So many times beyond it, each within this of the one before, and its gates stay open that long. */
#define FALLBACKS_MOST 3u
#define EXEMPT_NS (10000 * MILLISECOND_NS)

/* What a contender that is out may begin with, so that it need not wait for us when it wakes up. */
static uint64_t begins_with(const struct contender *contender)
{
	if (contender->pending || (contender_is_hard(contender) && contender->spent))
		return 0;
	if (contender_class(contender) == 0)
		return 2;
	return contender_class(contender) == 1 && !contender->active;
}

static uint32_t quantum_of(const struct turns *turns)
{
	return turns_have_latency(turns) ? QUANTUM_BESIDE_LATENCY_NS : ALIQUOT_QUANTUM_NS;
}

void contender_hold_out(struct contender *contender)
{
	EACH_WORKER (worker, contender) {
		work_set_pace(worker, ALIQUOT_TURNS);
		work_set_ring(worker, !contender->active);
		work_set_quantum(worker, quantum_of(contender->turns));
		work_limit(worker, begins_with(contender));
	}
}

void contender_give(struct contender *contender, uint64_t now)
{
	bool beside = turns_have_latency(contender->turns);
	struct turns_due due = turns_due(contender->turns, now);
	EACH_WORKER (worker, contender) {
		work_set_ring(worker, false);
		work_set_pace(worker, ALIQUOT_TURNS);
		work_set_quantum(worker, quantum_of(contender->turns));
		work_give(worker, beside ? AHEAD_BESIDE_LATENCY_NS : AHEAD_NS, &due, now);
	}
}

void contender_open_gates(struct contender *contender)
{
	EACH_WORKER (worker, contender)
		work_open(worker);
}

void contender_set_state(struct contender *contender, enum contender_state state, uint64_t now)
{
	contender->state = state;
	contender->since = now;
}

void contender_end_window(struct contender *contender, bool at_once, uint64_t now)
{
	struct turns *turns = contender->turns;
	turns->holder = NULL;
	EACH_WORKER (worker, contender) {
		work_set_pace(worker, ALIQUOT_YIELD);
		if (at_once)
			work_take_back(worker);
	}
	contender->in_hand_ns = contender_in_hand(contender);
	contender_set_state(contender, CONTENDER_DRAINS, now);
	for (struct contender *other = contender->joint; other != contender; other = other->joint) {
		other->called = false;
		if (other->state == CONTENDER_HOLDS)
			other->window_ns = 0;
	}
}

/* In proportion to its weight, longer or shorter by what it is behind or ahead of the others. */
static uint64_t window_of(const struct contender *contender)
{
	double weights = 0, used = 0;
	EACH (other, contender->turns) {
		if (!other->active || contender_class(other) / 2 != contender_class(contender) / 2)
			continue;
		weights += other->weight;
		used += other->used * other->weight;
	}
	if (weights <= 0)
		return contender->turns->round_ns;
	double usual = (double)contender->turns->round_ns * contender->weight / weights;
	double window = usual + (used / weights - contender->used) * contender->weight;
	if (window < usual / 4)
		window = usual / 4;
	if (window > usual * 2)
		window = usual * 2;
	return window > (double)WINDOW_LEAST_NS ? (uint64_t)window : WINDOW_LEAST_NS;
}

static void call_joint(struct contender *contender)
{
	for (struct contender *other = contender->joint; other != contender; other = other->joint)
		other->called = other->turns->contended && contender_may_hold(other) &&
		                other->state != CONTENDER_HOLDS;
}

void contender_begin_window(struct contender *contender, uint64_t now)
{
	struct turns *turns = contender->turns;
	if (contender->waits_at)
		contender_count_wait(contender, now);
	contender->figures.handovers += contender->state != CONTENDER_HOLDS;
	contender->window_ns = window_of(contender);
	turns->holder = contender;
	contender_set_state(contender, CONTENDER_HOLDS, now);
	if (!contender->called)
		call_joint(contender);
	contender->called = false;
}

static uint64_t bound_of(const struct contender *contender)
{
	uint64_t bound = 2 * contender->longest_ns;
	if (bound < BOUND_LEAST_NS)
		bound = BOUND_LEAST_NS;
	return bound < BOUND_MOST_NS ? bound : BOUND_MOST_NS;
}

/* It did not come to its end: the others go on beside it. */
static void fall_back(struct contender *contender, uint64_t now)
{
	bool again = contender->fallback_at && now - contender->fallback_at < EXEMPT_NS;
	contender->fallbacks_in_a_row = again ? contender->fallbacks_in_a_row + 1 : 1;
	contender->fallback_at = now;
	contender->figures.fallbacks++;
	contender->state = CONTENDER_OVERDUE; /* since it began to drain: that is how long it takes */
	if (contender->fallbacks_in_a_row < FALLBACKS_MOST)
		return;
	contender_set_state(contender, CONTENDER_EXEMPT, now);
	contender->fallbacks_in_a_row = 0;
	contender_open_gates(contender);
}

static void come_to_end(struct contender *contender, uint64_t now)
{
	uint64_t took = now - contender->since;
	contender->longest_ns -= contender->longest_ns / 16;
	if (took > contender->longest_ns)
		contender->longest_ns = took;
	contender_set_state(contender, CONTENDER_OUT, now);
}

/* What it has in hand may wait for a sibling that has come to its end already: that one gets a quantum
 * more, beside who holds its GPU. */
static void help_joint(struct contender *contender, uint64_t now)
{
	for (struct contender *other = contender->joint; other != contender; other = other->joint) {
		if (other->state != CONTENDER_OUT || !other->pending)
			continue;
		EACH_WORKER (worker, other)
			if (worker->pending)
				work_limit(worker, 1);
		other->in_hand_ns = contender_in_hand(other);
		contender_set_state(other, CONTENDER_DRAINS, now);
	}
}

void contender_move_on(struct contender *contender, uint64_t now)
{
	switch (contender->state) {
	case CONTENDER_OUT:
		/* It has begun with what it had; that is its turn, if a short one. */
		if (contender->pending && !contender_is_drained(contender)) {
			contender->in_hand_ns = contender_in_hand(contender);
			contender_set_state(contender, CONTENDER_DRAINS, now);
		}
		break;
	case CONTENDER_DRAINS:
		if (contender_is_drained(contender))
			come_to_end(contender, now);
		else if (now - contender->since > bound_of(contender))
			fall_back(contender, now);
		else if (now - contender->since > contender->in_hand_ns + HELP_NS)
			help_joint(contender, now);
		break;
	case CONTENDER_OVERDUE:
		if (contender_is_drained(contender))
			come_to_end(contender, now);
		break;
	case CONTENDER_EXEMPT:
		if (now - contender->since > EXEMPT_NS)
			contender_set_state(contender, CONTENDER_OUT, now);
		break;
	case CONTENDER_HOLDS:
		break;
	}
}
