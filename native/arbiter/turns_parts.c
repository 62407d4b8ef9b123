#include "turns_parts.h"

#include "turns_work.h"

/* After so many regular arrivals in a row the next is expected, and waited for that long. */
#define REGULAR_LEAST 4u
#define DUE_TOLERANCE_NS (300 * MICROSECOND_NS)
/* A group that begins on one GPU again and again gets no more of another than that beyond its share. */
#define CALLED_ROUNDS 4
/* How much of its share a latency slice may save up, to start at once with. */
#define LATENCY_SAVED_NS (200 * MILLISECOND_NS)

bool contender_is_hard(const struct contender *contender)
{
	return contender->settings.policy == ALIQUOT_HARD;
}

bool contender_overlaps(const struct contender *contender)
{
	return contender->settings.mps && !contender_is_hard(contender) &&
	       contender->measured_ns >= MEASURED_LEAST_NS && contender->turns->measured == NULL;
}

/* Of the same priority, or a background contender would share the window of a normal one. */
bool contender_is_companion(const struct contender *one, const struct contender *other)
{
	return one != other && one->group == other->group && one->turns == other->turns &&
	       one->settings.priority == other->settings.priority &&
	       (!one->settings.mps || (contender_overlaps(one) && contender_overlaps(other)));
}

double contender_least_used(const struct contender *contender)
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

double turns_round(const struct turns *turns)
{
	return (double)turns->round_ns / 100;
}

bool contender_is_called(const struct contender *contender)
{
	double least = contender->called ? contender_least_used(contender) : 0;
	return contender->called &&
	       (least < 0 || contender->used <= least + CALLED_ROUNDS * turns_round(contender->turns));
}

double contender_group_weight(const struct contender *contender)
{
	double weight = contender->weight;
	EACH_JOINT (other, contender)
		if (other->active && contender_is_companion(contender, other))
			weight += other->weight;
	return weight;
}

double contender_group_used(const struct contender *contender)
{
	double used = contender->used * contender->weight;
	EACH_JOINT (other, contender)
		if (other->active && contender_is_companion(contender, other))
			used += other->used * other->weight;
	return used / contender_group_weight(contender);
}

bool turns_is_gated(const struct contender *contender)
{
	EACH_WORKER (worker, contender)
		if (worker->gated)
			return true;
	return false;
}

int contender_class(const struct contender *contender)
{
	switch (contender->settings.priority) {
	case ALIQUOT_LATENCY:
		return contender->spent ? 1 : 0;
	case ALIQUOT_BACKGROUND:
		return 2;
	default:
		return 1;
	}
}

bool contender_may_hold(const struct contender *contender)
{
	if (!contender->pending || contender->state == CONTENDER_OVERDUE ||
	    contender->state == CONTENDER_EXEMPT)
		return false;
	return !contender_is_hard(contender) || !contender->spent;
}

bool contender_is_drained(const struct contender *contender)
{
	EACH_WORKER (worker, contender)
		if (!work_is_drained(worker))
			return false;
	return true;
}

bool contender_is_on_the_gpu(const struct contender *contender)
{
	return contender->state == CONTENDER_HOLDS || contender->state == CONTENDER_DRAINS ||
	       contender->state == CONTENDER_OVERDUE;
}

bool contender_runs_beside(const struct contender *contender)
{
	EACH_WORKER (worker, contender)
		if (work_is_unheld(worker))
			return true;
	return contender->state == CONTENDER_EXEMPT && contender->pending;
}

bool turns_have_latency(const struct turns *turns)
{
	EACH (contender, turns)
		if (contender->settings.priority == ALIQUOT_LATENCY && contender->active)
			return true;
	return false;
}

uint64_t contender_in_hand(const struct contender *contender)
{
	uint64_t most = 0;
	EACH_WORKER (worker, contender) {
		uint64_t ns = work_in_hand(worker);
		most = ns > most ? ns : most;
	}
	return most;
}

struct turns_due turns_due(const struct turns *turns, uint64_t now)
{
	struct turns_due next = {.in_ns = TURNS_NEVER};
	EACH (contender, turns) {
		uint64_t due = contender->arrived_at + contender->period_ns;
		if (contender_class(contender) != 0 || contender->pending ||
		    contender->regular < REGULAR_LEAST || now > due + DUE_TOLERANCE_NS)
			continue;
		uint64_t in = due > now ? due - now : 0;
		if (in < next.in_ns)
			next = (struct turns_due){.in_ns = in, .period_ns = contender->period_ns};
	}
	return next;
}

unsigned turns_on_the_gpu(const struct turns *turns)
{
	unsigned count = 0;
	EACH (contender, turns)
		count += contender_is_on_the_gpu(contender);
	return count;
}

/* The sum of the requested shares, and how many contenders requested none; index 1: background. */
struct asked {
	double percent[2];
	unsigned without[2];
};

static void add_request(const struct contender *contender, struct asked *asked)
{
	int background = contender->settings.priority == ALIQUOT_BACKGROUND;
	asked->percent[background] += contender->settings.percent;
	asked->without[background] += !contender->settings.percent;
}

static void weigh(struct contender *contender, const struct asked *asked)
{
	int background = contender->settings.priority == ALIQUOT_BACKGROUND;
	double left = asked->percent[background] < 100 ? 100 - asked->percent[background] : 0;
	contender->weight = contender->settings.percent;
	if (!contender->settings.percent)
		contender->weight = left / asked->without[background];
	if (contender->weight < 1)
		contender->weight = 1;
}

static bool is_parked(const struct contender *contender)
{
	return contender->settings.grant_state == ALIQUOT_GRANT_PARKED;
}

/* Contenders without a percentage share equally what the others leave. Background contenders get only
 * idle time anyway, and share that by their percentages. Parked contenders have no weight. */
void turns_weigh(struct turns *turns)
{
	struct asked asked = {0};
	EACH (contender, turns)
		add_request(contender, &asked);
	for (struct contender *excluded = turns->excluded; excluded; excluded = excluded->next)
		if (!is_parked(excluded))
			add_request(excluded, &asked);
	EACH (contender, turns)
		weigh(contender, &asked);
	for (struct contender *excluded = turns->excluded; excluded; excluded = excluded->next) {
		excluded->weight = 0;
		if (!is_parked(excluded))
			weigh(excluded, &asked);
	}
}

double contender_token_rate(const struct contender *contender)
{
	return contender->weight / 100;
}

double contender_tokens_most(const struct contender *contender)
{
	uint64_t saved = contender_is_hard(contender) ? contender->turns->round_ns : LATENCY_SAVED_NS;
	return (double)saved * contender_token_rate(contender);
}
