#include "turns_parts.h"
#include "turns_work.h"

/* The windows of all contenders together; longer if there are so many that switching the GPU between
 * processes would cost too much. */
#define ROUND_NS (20 * MILLISECOND_NS)
#define WINDOW_USUAL_NS (5 * MILLISECOND_NS)

/* The arbiter was stopped for longer: nobody knows who used the GPU. */
#define PASSED_MOST_NS (1000 * SECOND_NS)

/* While contenders take turns the arbiter looks more often than this. A longer time without a look is
 * one in which the machine stood still, or had no processor for the arbiter; it counts as this much of
 * a drain, because the program may not have run either. */
#define GAP_COUNTED_NS (10 * MILLISECOND_NS)

#define LOOK_LEAST_NS (15 * MICROSECOND_NS)
#define LOOK_HOLDER_NS (200 * MICROSECOND_NS)
#define LOOK_WITH_LATENCY_NS (100 * MICROSECOND_NS)

void turns_init(struct turns *turns, uint64_t now)
{
	*turns = (struct turns){.looked_at = now, .round_ns = ROUND_NS};
}

/* Whether it can be the next holder of its GPU. */
static bool may_lead(const struct contender *contender)
{
	if (!contender->turns->contended || !contender_may_hold(contender))
		return false;
	EACH (other, contender->turns)
		if (other->pending && contender_class(other) < contender_class(contender))
			return false;
	return true;
}

/* A group on several GPUs starts on the first contended one on which it has work. */
static bool follows_joint(const struct contender *contender)
{
	EACH_JOINT (other, contender)
		if (other->turns < contender->turns && may_lead(other))
			return true;
	return false;
}

static bool is_before(const struct contender *one, const struct contender *other)
{
	bool is_called = contender_is_called(one);
	if (!other || is_called != contender_is_called(other))
		return !other || is_called;
	if (contender_class(one) != contender_class(other))
		return contender_class(one) < contender_class(other);
	if (one == one->turns->measured || other == one->turns->measured)
		return one == one->turns->measured;
	return contender_group_used(one) < contender_group_used(other);
}

static struct contender *choose_next(const struct turns *turns)
{
	struct contender *best = NULL;
	EACH (contender, turns)
		if (contender->state != CONTENDER_HOLDS && contender_may_hold(contender) &&
		    (contender_is_called(contender) || !follows_joint(contender)) &&
		    is_before(contender, best))
			best = contender;
	return best;
}

/* Whether the holder has no work and is not expected to have new work at once. */
static bool is_away(const struct contender *holder, uint64_t now)
{
	if (holder->pending)
		return false;
	return holder->gap_ns > TURNS_GAP_MOST_NS ||
	       now - holder->idle_at > 2 * holder->gap_ns + 50 * MICROSECOND_NS;
}

/* Companions of the holder hold with it while they have work. If the holder has none, one that has
 * leads the window on. */
static void gather_companions(struct turns *turns, uint64_t now)
{
	struct contender *holder = turns->holder, *leads = NULL;
	EACH_JOINT (other, holder) {
		if (!contender_is_companion(holder, other))
			continue;
		if (other->state == CONTENDER_HOLDS && is_away(other, now))
			contender_set_state(other, CONTENDER_OUT, now);
		else if (other->state != CONTENDER_HOLDS && contender_may_hold(other))
			contender_join_window(other, now);
		if (other->state != CONTENDER_HOLDS)
			continue;
		other->since = holder->since;
		other->window_ns = holder->window_ns;
		leads = other->pending ? other : leads;
	}
	if (leads && is_away(holder, now)) {
		turns->holder = leads;
		contender_set_state(holder, CONTENDER_OUT, now);
	}
}

static bool is_spent(const struct turns *turns)
{
	EACH (contender, turns)
		if (contender->state == CONTENDER_HOLDS && contender_is_hard(contender) && contender->spent)
			return true;
	return false;
}

static bool starts_at_once(const struct contender *next, const struct contender *holder)
{
	return contender_class(next) < contender_class(holder) ||
	       (contender_is_called(next) && !contender_is_called(holder));
}

static void consider_holder(struct turns *turns, const struct contender *next, uint64_t now)
{
	struct contender *holder = turns->holder;
	bool over = now - holder->since >= holder->window_ns;
	/* A holder that is still behind gets another window: the other overran by more than one window. */
	bool behind = next && is_before(holder, next);
	if (is_spent(turns) ||
	    (next && (starts_at_once(next, holder) || is_away(holder, now) || (over && !behind))))
		contender_end_window(holder, next && starts_at_once(next, holder), now);
	else if (over)
		contender_begin_window(holder, now);
	EACH (contender, turns)
		if (!turns->holder && contender->state == CONTENDER_DRAINS)
			contender_move_on(contender, now);
}

static bool is_clear_for(const struct turns *turns, const struct contender *next)
{
	if (contender_class(next) == 0)
		return true;
	EACH (contender, turns)
		if (contender != next && contender->state == CONTENDER_DRAINS &&
		    !contender_is_companion(contender, next))
			return false;
	return true;
}

/* When the next look is useful: for the holder, for a drain, or for tokens that come back. */
static uint64_t next_look(const struct turns *turns, uint64_t now)
{
	uint64_t most = turns_have_latency(turns) ? LOOK_WITH_LATENCY_NS : LOOK_HOLDER_NS;
	uint64_t wait = most;
	EACH (contender, turns) {
		uint64_t mine = most, in_state = now - contender->since;
		if (contender->state == CONTENDER_DRAINS) {
			/* Just before it should be done, then often, then less and less often. */
			uint64_t soon = contender->in_hand_ns * 3 / 4;
			mine = in_state < soon ? soon - in_state : in_state / 16;
		} else if (contender->state == CONTENDER_HOLDS) {
			mine = contender->pending ? contender_in_hand(contender) / 2 : LOOK_LEAST_NS;
			if (in_state + mine > contender->window_ns && in_state < contender->window_ns)
				mine = contender->window_ns - in_state;
		} else if (contender_is_hard(contender) && contender->pending && contender->spent) {
			double missing = contender_tokens_most(contender) / 2 - contender->tokens;
			mine = missing > 0 ? (uint64_t)(missing / contender_token_rate(contender)) : 0;
		}
		wait = mine < wait ? mine : wait;
	}
	return now + (wait > LOOK_LEAST_NS ? wait : LOOK_LEAST_NS);
}

static bool needs_turns(const struct turns *turns)
{
	const struct contender *first = NULL;
	bool contends = false;
	EACH (contender, turns) {
		if (!contender->active || !turns_is_gated(contender))
			continue;
		if (contender_is_hard(contender) && contender->state != CONTENDER_EXEMPT)
			return true;
		contends |= first && (!contender_is_companion(first, contender) || first->settings.mps);
		first = contender;
	}
	return contends;
}

/* Nobody contends: active contenders have open gates, the others send RING when they start. */
static void stop_turns(struct turns *turns, uint64_t now)
{
	turns->holder = NULL;
	turns_forget_measured(turns, now);
	EACH (contender, turns) {
		bool only = !turns->contenders->next && !contender_is_hard(contender);
		if (contender->state != CONTENDER_OUT && contender->state != CONTENDER_EXEMPT)
			contender_set_state(contender, CONTENDER_OUT, now);
		if (contender->active || only)
			contender_open_gates(contender);
		else
			contender_hold_out(contender);
		contender->waits_at = 0;
		contender->called = false;
		contender->progress = 0;
	}
}

static void begin_turns(struct turns *turns, uint64_t now)
{
	EACH (contender, turns) {
		if (contender->state == CONTENDER_EXEMPT)
			continue;
		/* The contender that was alone has started work already: it gets the first window. */
		if (contender->pending && !contender_is_drained(contender) && !turns->holder)
			contender_begin_window(contender, now);
		/* Quanta that others have started are waited for, and charged. */
		EACH_WORKER (worker, contender)
			work_limit(worker, worker->pending);
	}
}

static void take_turns(struct turns *turns, uint64_t now)
{
	unsigned active = 0;
	EACH (contender, turns) {
		contender_move_on(contender, now);
		active += contender->active;
	}
	turns->round_ns = active * WINDOW_USUAL_NS > ROUND_NS ? active * WINDOW_USUAL_NS : ROUND_NS;
	if (turns_measure_overlapping(turns, now))
		contender_end_window(turns->holder, false, now);
	if (turns->holder)
		gather_companions(turns, now);
	struct contender *next = choose_next(turns);
	if (turns->holder)
		consider_holder(turns, next, now);
	if (!turns->holder && next && is_clear_for(turns, next))
		contender_begin_window(next, now);
	if (turns->holder)
		gather_companions(turns, now);
	turns_bound_progress(turns);
	EACH (contender, turns) {
		if (contender->state == CONTENDER_HOLDS && contender_is_ahead(contender))
			contender_hold_back(contender);
		else if (contender->state == CONTENDER_HOLDS)
			contender_give(contender, now);
		else if (contender->state == CONTENDER_OUT)
			contender_hold_out(contender);
		bool waits = contender->pending && contender->state == CONTENDER_OUT;
		if (waits && !contender->waits_at)
			contender->waits_at = now;
		else if (!waits && contender->state == CONTENDER_OUT)
			contender->waits_at = 0;
	}
}

static uint64_t later(uint64_t time, uint64_t by, uint64_t now)
{
	return time + by < now ? time + by : now;
}

/* No contender is late because nobody looked. */
static void forgive_gap(struct turns *turns, uint64_t passed, uint64_t now)
{
	if (!turns->contended || passed <= GAP_COUNTED_NS)
		return;
	EACH (contender, turns) {
		if (contender->state != CONTENDER_DRAINS)
			continue;
		contender->since = later(contender->since, passed - GAP_COUNTED_NS, now);
		contender->alone_at = later(contender->alone_at, passed - GAP_COUNTED_NS, now);
	}
}

uint64_t turns_look(struct turns *turns, uint64_t now)
{
	uint64_t passed = now > turns->looked_at ? now - turns->looked_at : 0;
	if (passed > PASSED_MOST_NS)
		passed = PASSED_MOST_NS;
	unsigned sharers = turns_sharers(turns);
	turns->looked_at = now;
	forgive_gap(turns, passed, now);
	turns_charge(turns, passed);
	bool alone = turns_on_the_gpu(turns) == 1;
	EACH (contender, turns) {
		bool on_the_gpu = contender_is_on_the_gpu(contender);
		contender_look(contender, on_the_gpu ? sharers : 0, on_the_gpu && alone ? passed : 0, now);
	}
	turns_sum_progress(turns, passed);
	bool needed = needs_turns(turns);
	if (needed && !turns->contended)
		begin_turns(turns, now);
	turns->contended = needed;
	if (!needed) {
		stop_turns(turns, now);
		return TURNS_NEVER;
	}
	take_turns(turns, now);
	return next_look(turns, now);
}

uint64_t turns_backlog(const struct contender *contender)
{
	uint64_t sum = 0;
	EACH_WORKER (worker, contender)
		if (worker->pending)
			sum += worker->view.opened - worker->view.done;
	return sum;
}

/* The upper end of a bucket, in seconds. */
static double bucket_end(unsigned bucket)
{
	if (bucket < 4)
		return (bucket + 1) * 1e-6;
	unsigned doublings = bucket / 4 + 1;
	return (double)((UINT64_C(4) + bucket % 4 + 1) << (doublings - 2)) * 1e-6;
}

double turns_wait_quantile(const struct turns_figures *figures, double part)
{
	double wanted = (double)figures->waits * part, seen = 0;
	for (unsigned i = 0; figures->waits && i < TURNS_WAITS; i++) {
		seen += (double)figures->waits_in[i];
		if (seen >= wanted)
			return bucket_end(i);
	}
	return 0;
}
