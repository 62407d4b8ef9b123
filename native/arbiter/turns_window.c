/* Turns: how long a window is and how it ends: giving and taking back credit, and the bound after
 * which others continue. */
#include "turns_parts.h"
#include "turns_work.h"

#define WINDOW_LEAST_NS (1 * MILLISECOND_NS)
/* How far ahead the holder gets credit: enough for the time between two looks. */
#define AHEAD_NS (1 * MILLISECOND_NS)
/* The same while a latency slice is active, which would have to wait for that work. */
#define AHEAD_WITH_LATENCY_NS (MILLISECOND_NS / 2)
#define QUANTUM_WITH_LATENCY_NS 300000u
/* If a drain takes this much longer than estimated, it may wait for another of its group. */
#define HELP_NS (1 * MILLISECOND_NS)
/* The pause between two helps doubles so often, while they are of no use. */
#define HELP_DOUBLINGS 6u
/* How long a holder may drain: twice its longest recent drain, within these bounds. */
#define BOUND_LEAST_NS (50 * MILLISECOND_NS)
#define BOUND_MOST_NS (1000 * MILLISECOND_NS)
/* After so many fallbacks, each within EXEMPT_NS of the one before, it is exempt for EXEMPT_NS. */
#define FALLBACKS_MOST 3u
#define EXEMPT_NS (10000 * MILLISECOND_NS)

/* Quanta that a contender which is out may start without asking, so that it need not wait for a look. */
static uint64_t initial_quanta(const struct contender *contender)
{
	if (contender->pending || (contender_is_hard(contender) && contender->spent))
		return 0;
	if (contender_class(contender) == 0)
		return 2;
	return contender_class(contender) == 1 && !contender->active;
}

static uint32_t quantum_of(const struct turns *turns)
{
	return turns_have_latency(turns) ? QUANTUM_WITH_LATENCY_NS : ALIQUOT_QUANTUM_NS;
}

void contender_hold_out(struct contender *contender)
{
	EACH_WORKER (worker, contender) {
		work_set_pace(worker, ALIQUOT_TURNS);
		work_set_ring(worker, !contender->active);
		work_set_quantum(worker, quantum_of(contender->turns));
		work_limit(worker, initial_quanta(contender));
	}
}

void contender_give(struct contender *contender, uint64_t now)
{
	bool with_latency = turns_have_latency(contender->turns);
	struct turns_due due = turns_due(contender->turns, now);
	uint64_t ahead_ns = with_latency ? AHEAD_WITH_LATENCY_NS
	                                 : contender_ahead_ns(contender, AHEAD_NS);
	EACH_WORKER (worker, contender) {
		work_set_ring(worker, false);
		work_set_pace(worker, ALIQUOT_TURNS);
		work_set_quantum(worker, quantum_of(contender->turns));
		work_give(worker, ahead_ns, &due, now);
	}
}

void contender_hold_back(struct contender *contender)
{
	EACH_WORKER (worker, contender)
		work_hold_back(worker);
}

void contender_open_gates(struct contender *contender)
{
	EACH_WORKER (worker, contender) {
		if (work_is_unheld(worker))
			work_limit(worker, 0);
		else
			work_open(worker);
	}
}

void contender_set_state(struct contender *contender, enum contender_state state, uint64_t now)
{
	contender->state = state;
	contender->since = now;
}

/* `since`: when the drain began that this one is part of. */
static void begin_drain(struct contender *contender, uint64_t since, uint64_t now)
{
	contender->in_hand_ns = contender_in_hand(contender);
	contender->alone_at = now;
	contender->helps = 0;
	contender_set_state(contender, CONTENDER_DRAINS, since);
}

static void stop_giving(struct contender *contender, bool at_once, uint64_t now)
{
	EACH_WORKER (worker, contender) {
		work_set_pace(worker, ALIQUOT_YIELD);
		if (at_once)
			work_take_back(worker);
	}
	begin_drain(contender, now, now);
}

void contender_end_window(struct contender *contender, bool at_once, uint64_t now)
{
	struct turns *turns = contender->turns;
	turns->holder = NULL;
	stop_giving(contender, at_once, now);
	EACH_JOINT (other, contender) {
		other->called = false;
		if (other->state != CONTENDER_HOLDS)
			continue;
		if (other->turns == turns)
			stop_giving(other, at_once, now);
		else
			other->window_ns = 0;
	}
}

void contender_leave_window(struct contender *contender)
{
	struct turns *turns = contender->turns;
	if (turns->holder != contender)
		return;
	turns->holder = NULL;
	EACH_JOINT (other, contender)
		if (other->turns == turns && other->state == CONTENDER_HOLDS)
			turns->holder = other;
}

/* In proportion to its weight, corrected by how far its used time is behind or ahead. */
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
	double weight = contender_group_weight(contender);
	double usual = (double)contender->turns->round_ns * weight / weights;
	double window = usual + (used / weights - contender_group_used(contender)) * weight;
	if (window < usual / 4)
		window = usual / 4;
	if (window > usual * 2)
		window = usual * 2;
	return window > (double)WINDOW_LEAST_NS ? (uint64_t)window : WINDOW_LEAST_NS;
}

/* Those on the same GPU join its window. */
static void call_joint(struct contender *contender)
{
	EACH_JOINT (other, contender)
		other->called = other->turns != contender->turns && other->turns->contended &&
		                contender_may_hold(other) && other->state != CONTENDER_HOLDS;
}

static void begin_to_hold(struct contender *contender, uint64_t now)
{
	if (contender->waits_at)
		contender_count_wait(contender, now);
	contender->figures.handovers += contender->state != CONTENDER_HOLDS;
	contender_set_state(contender, CONTENDER_HOLDS, now);
}

void contender_begin_window(struct contender *contender, uint64_t now)
{
	bool is_measured = contender->turns->measured == contender;
	contender->window_ns = is_measured ? contender_measure_ns(contender) : window_of(contender);
	contender->turns->holder = contender;
	begin_to_hold(contender, now);
	if (!contender->called)
		call_joint(contender);
	contender->called = false;
}

void contender_join_window(struct contender *companion, uint64_t now)
{
	begin_to_hold(companion, now);
	companion->called = false;
}

static uint64_t bound_of(const struct contender *contender)
{
	uint64_t bound = 2 * contender->longest_ns;
	if (bound < BOUND_LEAST_NS)
		bound = BOUND_LEAST_NS;
	return bound < BOUND_MOST_NS ? bound : BOUND_MOST_NS;
}

/* It did not drain in time: the others run at the same time. */
static void fall_back(struct contender *contender, uint64_t now)
{
	bool again = contender->fallback_at && now - contender->fallback_at < EXEMPT_NS;
	contender->fallbacks_in_a_row = again ? contender->fallbacks_in_a_row + 1 : 1;
	contender->fallback_at = now;
	contender->figures.fallbacks++;
	contender->state = CONTENDER_OVERDUE; /* `since` stays: the drain still goes on */
	if (contender->fallbacks_in_a_row < FALLBACKS_MOST)
		return;
	contender_set_state(contender, CONTENDER_EXEMPT, now);
	contender->fallbacks_in_a_row = 0;
	contender_open_gates(contender);
}

static void finish_drain(struct contender *contender, uint64_t now)
{
	uint64_t took = now - contender->since;
	contender->longest_ns -= contender->longest_ns / 16;
	if (took > contender->longest_ns)
		contender->longest_ns = took;
	contender_set_state(contender, CONTENDER_OUT, now);
	EACH_JOINT (other, contender)
		other->alone_at = now;
}

/* Whether its work takes so much longer than estimated that it may wait for another of its group. */
static bool needs_help(const struct contender *contender, uint64_t now)
{
	/* No kernel of a client waits for another's. */
	if (contender->settings.mps)
		return false;
	return now - contender->alone_at > (contender->in_hand_ns + HELP_NS) << contender->helps;
}

/* No help ends a kernel that never ends: one that does no quantum gets less and less of it. */
static void count_help(struct contender *contender)
{
	uint64_t done = 0;
	EACH_WORKER (worker, contender)
		done += worker->view.done;
	if (done != contender->helped_done)
		contender->helps = 0;
	else if (contender->helps < HELP_DOUBLINGS)
		contender->helps++;
	contender->helped_done = done;
}

/* Its unfinished work may wait for another of its group that has drained already: that one gets one
 * more quantum, even while another contender holds the GPU. A member alone on its GPU has open gates and
 * needs none. While it drains it is the same drain, with one bound: members that help each other in
 * turn keep nobody waiting for longer. One that is late keeps nobody waiting, but without help it would
 * be late for ever, and its companions with it: it is charged for that time, so others are always before.
 * A member on another GPU has turns there that a late one does not delay, and gets no more than these. */
static void help_joint(struct contender *contender, uint64_t now)
{
	bool is_late = contender->state != CONTENDER_DRAINS;
	contender->alone_at = now;
	EACH_JOINT (other, contender) {
		if (other->state != CONTENDER_OUT || !other->pending || !other->turns->contended ||
		    (is_late && other->turns != contender->turns))
			continue;
		if (is_late)
			count_help(contender);
		EACH_WORKER (worker, other)
			if (worker->pending)
				work_limit(worker, 1);
		begin_drain(other, is_late ? now : contender->since, now);
	}
}

void contender_move_on(struct contender *contender, uint64_t now)
{
	switch (contender->state) {
	case CONTENDER_OUT:
		/* It has started its initial quanta; that is a turn, if a short one. */
		if (contender->pending && !contender_is_drained(contender))
			begin_drain(contender, now, now);
		break;
	case CONTENDER_DRAINS:
		if (contender_is_drained(contender))
			finish_drain(contender, now);
		else if (now - contender->since > bound_of(contender))
			fall_back(contender, now);
		else if (needs_help(contender, now))
			help_joint(contender, now);
		break;
	case CONTENDER_OVERDUE:
		if (contender_is_drained(contender))
			finish_drain(contender, now);
		else if (needs_help(contender, now))
			help_joint(contender, now);
		break;
	case CONTENDER_EXEMPT:
		if (now - contender->since > EXEMPT_NS) {
			contender_set_state(contender, CONTENDER_OUT, now);
			contender_forget_debt(contender);
		} else if (contender->pending && needs_help(contender, now)) {
			help_joint(contender, now);
		}
		break;
	case CONTENDER_HOLDS:
		break;
	}
}
