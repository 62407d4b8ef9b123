/* Turns: observing which slices have work, and what GPU time each is charged. */
#include "turns_parts.h"
#include "turns_work.h"

/* A contender without work for this long is inactive until it sends RING. */
#define INACTIVE_NS (50 * MILLISECOND_NS)
/* An arrival is regular if it is off by less than this fraction of the period. */
#define REGULAR_PART 10
#define GAP_COUNTED_NS (2 * MILLISECOND_NS)

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

/* The least used time of the other contenders of its class that have work; below 0: there are none. */
static double least_used(const struct contender *contender)
{
	double least = -1;
	EACH (other, contender->turns) {
		bool contends = other != contender && other->pending &&
		                contender_class(other) / 2 == contender_class(contender) / 2;
		if (contends && (least < 0 || other->used < least))
			least = other->used;
	}
	return least;
}

/* One round, in the unit of `used`. */
static double round_of(const struct contender *contender)
{
	return (double)contender->turns->round_ns / 100;
}

/* It has work again after a pause: unused time is not saved up. */
static void forget_savings(struct contender *contender)
{
	double least = least_used(contender);
	if (least >= 0 && contender->used < least - round_of(contender))
		contender->used = least - round_of(contender);
}

/* It was inactive for long: an old overrun does not count. */
static void forget_debt(struct contender *contender)
{
	double least = least_used(contender);
	if (least >= 0 && contender->used > least + round_of(contender))
		contender->used = least + round_of(contender);
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
		forget_debt(contender);
	contender->active = active;
}

/* Its processes that had work at the last look: the GPU shares its time between them. */
static unsigned count_busy(const struct contender *contender)
{
	unsigned count = 0;
	EACH_WORKER (worker, contender)
		count += worker->timed_at != 0;
	return count;
}

void contender_look(struct contender *contender, bool had_it_alone, uint64_t now)
{
	bool pending = false, moved = false;
	unsigned busy = count_busy(contender);
	EACH_WORKER (worker, contender) {
		uint64_t done = worker->done;
		work_look(worker, now);
		work_time(worker, done, had_it_alone ? busy : 0, now);
		pending |= worker->pending;
		moved |= worker->gated && worker->moved_at == now;
	}
	notice_pending(contender, pending, now);
	notice_active(contender, moved, now);
}

/* Whether it may be waiting for a sibling on another GPU that is called in and does not hold yet. */
static bool waits_for_joint(const struct contender *contender)
{
	for (struct contender *other = contender->joint; other != contender; other = other->joint)
		if (other->called && contender_may_hold(other))
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

/* Charges the time since the last look to the contenders that were on the GPU, in equal parts. */
void turns_charge(struct turns *turns, uint64_t passed)
{
	unsigned count = turns->contended ? turns_on_the_gpu(turns) : 0;
	EACH (contender, turns) {
		bool was = count && contender_is_on_the_gpu(contender) && !waits_for_joint(contender);
		double part = was ? (double)passed / count : 0;
		contender->figures.used_ns += (uint64_t)part;
		contender->used += part / contender->weight;
		count_tokens(contender, (double)passed, part);
	}
}
