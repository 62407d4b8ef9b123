/* Turns: clients of one MPS server, whose kernels run on the GPU at the same time.
 *
 * They hold the GPU together, in one window for the sum of their weights, so towards all others nothing
 * is different. Within that window the GPU's time belongs to several at once, and a share of it means
 * nothing. What counts is progress: the quanta that one has finished, weighed by the time that they
 * take alone. It gets credit while it is not further ahead of the others than about a quantum, each
 * for its weight.
 *
 * The time that quanta take alone is learned while it is alone, never while others work too. Each is
 * measured before it overlaps with others at all, and then in about 2 % of the time one of them has the
 * GPU for itself. The estimates of a process say how its quanta compare with each other; how long they
 * take is what the arbiter measured, so one that estimates too little or too much gains nothing by it.
 *
 * A `hard` slice never overlaps: its part of the clock is for it alone. */
#include "turns_parts.h"

/* Later one has it for itself so often, for so long: at most, and for each percent of its weight. */
#define MEASURE_EVERY_NS (500 * MILLISECOND_NS)
#define MEASURE_MOST_NS (10 * MILLISECOND_NS)
#define MEASURE_EACH_NS (1 * MILLISECOND_NS)
/* One that cannot be measured, because it has no work, does not keep the others waiting for longer. */
#define MEASURE_PATIENCE_NS (50 * MILLISECOND_NS)
/* A sum fades when it has reached so much: the last moments count most. */
#define TOOK_MOST_NS (2000.0 * (double)MILLISECOND_NS)
#define SUM_MOST_NS (200.0 * (double)MILLISECOND_NS)
#define RATE_MOST 16.0
/* If the newest sum of so much differs from the old one by so much, the work is another: only the newest
 * counts. */
#define NEWEST_MOST_NS (100.0 * (double)MILLISECOND_NS)
#define NEWEST_DIFFERS 1.5
/* How far one may be ahead of its companions, in its own progress. */
#define LEAD_NS (700.0 * (double)MICROSECOND_NS)
/* How far ahead of what it has done it gets credit: more than one that has the GPU for itself, because no
 * other waits for the end of its work. For each percent of its weight, and at most. */
#define AHEAD_EACH_NS (1 * MILLISECOND_NS)
#define AHEAD_MOST_NS (3 * MILLISECOND_NS)
/* How far one can fall behind, for each percent of its weight: more than a measurement costs. */
#define BEHIND_MOST_NS (2.0 * (double)MILLISECOND_NS)

static double rate_of_sums(const struct turns_sums *sums)
{
	if (sums->estimated_ns <= 0 || sums->took_ns <= 0)
		return 1;
	double rate = sums->took_ns / sums->estimated_ns;
	return rate > RATE_MOST ? RATE_MOST : rate < 1 / RATE_MOST ? 1 / RATE_MOST : rate;
}

static void add_to_sums(struct turns_sums *sums, uint64_t took_ns, uint64_t estimated_ns)
{
	sums->took_ns += (double)took_ns;
	sums->estimated_ns += (double)estimated_ns;
	if (sums->took_ns > TOOK_MOST_NS) {
		sums->took_ns /= 2;
		sums->estimated_ns /= 2;
	}
}

static void add_measured(struct contender *contender, uint64_t took_ns, uint64_t estimated_ns)
{
	bool early = contender->measured_ns < MEASURED_LEAST_NS / 2;
	contender->measured_ns += took_ns;
	if (early) {
		contender->measured_sums = contender->newest_sums = (struct turns_sums){0};
		return;
	}
	add_to_sums(&contender->measured_sums, took_ns, estimated_ns);
	add_to_sums(&contender->newest_sums, took_ns, estimated_ns);
	if (contender->newest_sums.took_ns < NEWEST_MOST_NS)
		return;
	double differs = rate_of_sums(&contender->newest_sums) /
	                 rate_of_sums(&contender->measured_sums);
	if (differs > NEWEST_DIFFERS || differs < 1 / NEWEST_DIFFERS)
		contender->measured_sums = contender->newest_sums;
	contender->newest_sums = (struct turns_sums){0};
}

void contender_note_progress(struct contender *contender, uint64_t finished_ns, uint64_t passed)
{
	/* Time counts from the end of one quantum to the end of another: the first may have begun, and the
	 * last may end, beside others. */
	contender->unfinished_ns = passed ? contender->unfinished_ns + passed : 0;
	if (!passed) {
		contender->finishes = false;
	} else if (finished_ns && !contender->finishes) {
		contender->finishes = true;
		contender->unfinished_ns = 0;
	} else if (finished_ns) {
		add_measured(contender, contender->unfinished_ns, finished_ns);
		contender->unfinished_ns = 0;
	}
	contender->did_ns = (double)finished_ns * rate_of_sums(&contender->measured_sums);
	contender->progress += contender->did_ns / contender->weight;
}

/* Whether both have work that may run at the same time. */
static bool work_together(const struct contender *one, const struct contender *other)
{
	return other->state == CONTENDER_HOLDS && other->pending && contender_is_companion(one, other);
}

bool contender_is_ahead(const struct contender *contender)
{
	double least = contender->progress;
	if (!contender->settings.mps)
		return false;
	EACH_JOINT (other, contender)
		if (work_together(contender, other) && other->progress < least)
			least = other->progress;
	return (contender->progress - least) * contender->weight > LEAD_NS;
}

uint64_t contender_ahead_ns(const struct contender *contender, uint64_t usual_ns)
{
	bool together = false;
	EACH_JOINT (other, contender)
		together |= work_together(contender, other);
	double most = contender->weight * (double)AHEAD_EACH_NS;
	if (!contender->settings.mps || !together || most < (double)usual_ns)
		return usual_ns;
	return most < (double)AHEAD_MOST_NS ? (uint64_t)most : AHEAD_MOST_NS;
}

void turns_bound_progress(struct turns *turns)
{
	EACH (contender, turns) {
		double most = contender->progress;
		if (!contender->settings.mps)
			continue;
		EACH_JOINT (other, contender)
			if (other->pending && other->progress > most &&
			    contender_is_companion(contender, other))
				most = other->progress;
		if (contender->progress < most - BEHIND_MOST_NS)
			contender->progress = most - BEHIND_MOST_NS;
	}
}

double contender_used_ns(const struct contender *contender)
{
	const struct turns *turns = contender->turns;
	double part = turns->did_ns > 0 ? turns->passed_ns / turns->did_ns : 1;
	return contender->did_ns * (part < 1 ? part : 1);
}

void turns_sum_progress(struct turns *turns, uint64_t passed)
{
	double did = 0;
	bool any = false;
	EACH (contender, turns) {
		if (!contender_overlaps(contender) || !contender_is_on_the_gpu(contender))
			continue;
		any = true;
		did += contender->did_ns;
	}
	if (!any)
		return;
	turns->passed_ns += (double)passed;
	turns->did_ns += did;
	if (turns->passed_ns > SUM_MOST_NS) {
		turns->passed_ns /= 2;
		turns->did_ns /= 2;
	}
}

void turns_forget_measured(struct turns *turns, uint64_t now)
{
	turns->measured = NULL;
	turns->measure_at = now + MEASURE_EVERY_NS;
}

uint64_t contender_measure_ns(const struct contender *contender)
{
	double most = contender->weight * (double)MEASURE_EACH_NS;
	return most < (double)MEASURE_MOST_NS ? (uint64_t)most : MEASURE_MOST_NS;
}

/* Of those that hold the GPU together, the one that was measured least recently; NULL: only one does. */
static struct contender *find_unmeasured(const struct turns *turns)
{
	struct contender *holder = turns->holder, *found = holder;
	unsigned count = 1;
	EACH_JOINT (other, holder) {
		if (!work_together(holder, other))
			continue;
		count++;
		if (other->measured_at < found->measured_at)
			found = other;
	}
	return count > 1 ? found : NULL;
}

bool turns_measure_overlapping(struct turns *turns, uint64_t now)
{
	struct contender *measured = turns->measured;
	if (measured) {
		bool holds = measured->state == CONTENDER_HOLDS;
		if ((holds && now - measured->since >= contender_measure_ns(measured)) ||
		    now - turns->measure_at > MEASURE_PATIENCE_NS) {
			measured->measured_at = now;
			turns_forget_measured(turns, now);
		}
		return false;
	}
	if (!turns->holder || !contender_overlaps(turns->holder) || now < turns->measure_at)
		return false;
	turns->measured = find_unmeasured(turns);
	turns->measure_at = turns->measured ? now : now + MEASURE_EVERY_NS;
	return turns->measured;
}
