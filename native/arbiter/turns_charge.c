/* Turns: observing which slices have work, and what GPU time each is charged. */
#include "turns_parts.h"
#include "turns_work.h"

/* A contender without work for this long is inactive until it sends RING. */
#define INACTIVE_NS (50 * MILLISECOND_NS)
/* An arrival is regular if it is off by less than this fraction of the period. */
#define REGULAR_PART 10
#define GAP_COUNTED_NS (2 * MILLISECOND_NS)
/* What a stopped process has queued may go on for a while. */
#define STILL_NS (100 * MILLISECOND_NS)

/* The bucket of a wait: four buckets for each doubling. */
static unsigned wait_bucket(uint64_t waited_ns)
{
	uint64_t us = waited_ns / MICROSECOND_NS;
	if (us < 4)
		return (unsigned)us;
	unsigned doublings = 63 - (unsigned)__builtin_clzll(us);
	unsigned bucket = 4 * (doublings - 1) + (unsigned)(us >> (doublings - 2) & 3);
	return bucket < TURNS_WAITS ? bucket : TURNS_WAITS - 1;
}

void contender_count_wait(struct contender *contender, uint64_t now)
{
	uint64_t waited = now - contender->waits_at;
	contender->figures.waits++;
	contender->figures.waited_ns += waited;
	contender->figures.waits_in[wait_bucket(waited)]++;
	contender->waits_at = 0;
}

/* Some contenders have work at regular times: rendering frames, a control loop, a periodic batch. */
static void notice_arrival(struct contender *contender, uint64_t now)
{
	uint64_t period = now - contender->arrived_at;
	contender->arrived_at = now;
	uint64_t off = period > contender->period_ns ? period - contender->period_ns
	                                             : contender->period_ns - period;
	contender->regular = off < contender->period_ns / REGULAR_PART ? contender->regular + 1 : 0;
	contender->period_ns = contender->regular ? (contender->period_ns * 7 + period) / 8 : period;
}

/* It has work again after a pause: unused time is not saved up. */
static void forget_savings(struct contender *contender)
{
	double least = contender_least_used(contender);
	if (least >= 0 && contender->used < least - turns_round(contender->turns))
		contender->used = least - turns_round(contender->turns);
}

void contender_forget_debt(struct contender *contender)
{
	double least = contender_least_used(contender);
	if (least >= 0 && contender->used > least + turns_round(contender->turns))
		contender->used = least + turns_round(contender->turns);
}

/* Learns how soon it usually has work again. */
static void notice_pending(struct contender *contender, bool pending, uint64_t now)
{
	if (pending && contender->idle_at) {
		uint64_t gap = now - contender->idle_at;
		if (gap > TURNS_GAP_MOST_NS) {
			notice_arrival(contender, now);
			forget_savings(contender);
		}
		if (gap > GAP_COUNTED_NS)
			gap = GAP_COUNTED_NS;
		contender->gap_ns = (contender->gap_ns * 4 + gap) / 5;
		contender->idle_at = 0;
	} else if (!pending && !contender->idle_at) {
		contender->idle_at = now;
	}
	contender->pending = pending;
}

static void notice_active(struct contender *contender, bool moved, uint64_t now)
{
	if (contender->pending || moved)
		contender->active_at = now;
	bool active = contender->pending || now - contender->active_at < INACTIVE_NS;
	if (active && !contender->active)
		contender_forget_debt(contender);
	contender->active = active;
}

/* Its processes that had work at the last look. */
static unsigned count_busy(const struct contender *contender)
{
	unsigned count = 0;
	EACH_WORKER (worker, contender)
		count += worker->timed_at != 0;
	return count;
}

unsigned turns_sharers(const struct turns *turns)
{
	const struct contender *first = NULL;
	unsigned sharers = 0;
	EACH (contender, turns) {
		if (!contender_is_on_the_gpu(contender))
			continue;
		if (first && !contender_is_companion(first, contender))
			return 0;
		if (first && contender->settings.mps)
			return 0; /* they work at the same time: no time is that of one */
		first = contender;
		sharers += count_busy(contender);
	}
	return first && first->settings.mps && sharers > 1 ? 0 : sharers;
}

void contender_look(struct contender *contender, unsigned sharers, uint64_t passed, uint64_t now)
{
	bool pending = false, moved = false, had_work = contender->pending;
	uint64_t finished_ns = 0;
	EACH_WORKER (worker, contender) {
		uint64_t done = worker->view.done;
		work_look(worker, now);
		finished_ns += worker->view.finished_ns;
		if (work_is_unheld(worker))
			work_limit(worker, 0);
		work_time(worker, done, sharers, now);
		pending |= worker->pending;
		moved |= worker->gated && worker->moved_at == now;
	}
	if (contender->settings.mps)
		contender_note_progress(contender, finished_ns, had_work && pending ? passed : 0);
	notice_pending(contender, pending, now);
	notice_active(contender, moved, now);
}

/* Whether it may be waiting for another of its group that is called in and does not hold yet. */
static bool waits_for_joint(const struct contender *contender)
{
	EACH_JOINT (other, contender)
		if (contender_may_hold(other) && contender_is_called(other))
			return true;
	return false;
}

/* A `hard` contender pays back its whole overrun. Others may use more than their share, and owe at
 * most what they can save. */
static void count_tokens(struct contender *contender, double passed, double used)
{
	double most = contender_tokens_most(contender);
	contender->tokens += passed * contender_token_rate(contender) - used;
	if (contender->tokens > most)
		contender->tokens = most;
	if (contender->tokens < -most && !contender_is_hard(contender))
		contender->tokens = -most;
	if (contender->tokens <= 0)
		contender->spent = true;
	else if (contender->tokens >= most / 2)
		contender->spent = false;
}

/* The part of the time since the last look that a contender is charged for. Contenders on the GPU are
 * charged in equal parts. One that runs beside them is charged for all of the time, and the others as
 * if it were not there: it may claim to run and be idle, and that must not be to anybody's benefit. */
static double part_of(const struct contender *contender, unsigned on_the_gpu)
{
	if (contender_runs_beside(contender))
		return 1;
	if (!contender_is_on_the_gpu(contender) || waits_for_joint(contender))
		return 0;
	return 1.0 / on_the_gpu;
}

/* Companions on the GPU use it together: the used time of each advances by the time of all for the
 * weight of all. One of little weight would fall behind the others of the GPU for ever. */
static double advance_of(const struct contender *contender, double part)
{
	double weight = contender->weight;
	unsigned count = 1;
	EACH_JOINT (other, contender) {
		if (!contender_is_companion(contender, other) || !contender_is_on_the_gpu(other) ||
		    contender_runs_beside(other))
			continue;
		weight += other->weight;
		count++;
	}
	return part * count / weight;
}

void turns_set_stopped(struct worker *worker, bool stopped)
{
	worker->stopped = stopped;
}

/* Whether it has work only in stopped processes, and that work does not move. */
static bool is_still(const struct contender *contender)
{
	EACH_WORKER (worker, contender)
		if (worker->pending &&
		    (!worker->stopped || contender->turns->looked_at - worker->moved_at < STILL_NS))
			return false;
	return contender->pending;
}

static unsigned count_moving(const struct turns *turns)
{
	unsigned count = 0;
	EACH (contender, turns)
		count += contender_is_on_the_gpu(contender) && !is_still(contender);
	return count;
}

void turns_charge(struct turns *turns, uint64_t passed)
{
	unsigned on_the_gpu = turns_on_the_gpu(turns), moving = count_moving(turns);
	EACH (contender, turns) {
		double part = turns->contended ? (double)passed * part_of(contender, on_the_gpu) : 0;
		if (turns->contended && turns->did_ns > 0 && contender_overlaps(contender))
			contender->figures.used_ns += (uint64_t)contender_used_ns(contender);
		else if (turns->contended && !is_still(contender))
			contender->figures.used_ns += (uint64_t)((double)passed * part_of(contender, moving));
		contender->used += contender_runs_beside(contender) ? part / contender->weight
		                                                    : advance_of(contender, part);
		count_tokens(contender, (double)passed, part);
	}
}
