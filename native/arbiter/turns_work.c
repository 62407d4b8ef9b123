#include "turns_work.h"

/* A quantum gets its marks when it is closed. A process that stops launching and waits in a way that
 * is not visible to us leaves it open: after this long it is taken to be done. */
#define STALE_NS UINT64_C(2000000)
#define AHEAD_LEAST 2u
#define AHEAD_MOST 64u
/* Quanta may take this fraction longer than estimated before a latency contender is due. It is small:
 * a quantum that is not started wastes GPU time, and one that is late delays the arrival only by as
 * much as it is late. */
#define DUE_MARGIN 8u
#define STRETCH_MOST 16
#define STRETCH_DECAY 0.99

static uint64_t credit_of(const struct worker *worker)
{
	return atomic_load_explicit(&worker->credit->credit, memory_order_relaxed);
}

/* A tenant can write anything to the page: the values that are kept here are always in order. */
void work_look(struct worker *worker, uint64_t now)
{
	const struct aliquot_work_slice *work = worker->work;
	uint64_t launches = atomic_load_explicit(&work->launches, memory_order_relaxed);
	uint64_t done = aliquot_work_done(work, worker->done);
	uint64_t closed = atomic_load_explicit(&work->closed, memory_order_acquire);
	uint64_t opened = atomic_load_explicit(&work->opened, memory_order_relaxed);
	if (closed < done)
		closed = done;
	if (opened < closed)
		opened = closed;
	if (launches != worker->launches || done != worker->done || closed != worker->closed ||
	    opened != worker->opened)
		worker->moved_at = now;
	worker->launches = launches;
	worker->done = done;
	worker->closed = closed;
	worker->opened = opened;
	worker->gated = atomic_load_explicit(&work->gates, memory_order_relaxed) == ALIQUOT_GATES_WORK;
	bool only_open = opened > closed && done == closed;
	if (only_open && opened <= credit_of(worker))
		worker->passed = opened;
	only_open &= opened == worker->passed;
	bool stale = only_open && now - worker->moved_at >= STALE_NS;
	worker->pending = worker->gated && opened > done && !stale;
}

bool work_is_drained(const struct worker *worker)
{
	uint64_t credit = credit_of(worker);
	if (!worker->pending)
		return true;
	if (worker->opened > worker->closed && worker->opened == worker->passed)
		return false;
	return worker->done >= (credit < worker->closed ? credit : worker->closed);
}

/* The estimated time of a quantum, which may not even be open yet. */
static uint64_t expected_ns(const struct worker *worker, uint64_t quantum)
{
	if (quantum <= worker->closed)
		return atomic_load_explicit(&worker->work->quanta[quantum % ALIQUOT_QUANTA].expected_ns,
		                            memory_order_relaxed);
	return atomic_load_explicit(&worker->credit->quantum_ns, memory_order_relaxed);
}

uint64_t work_in_hand(const struct worker *worker)
{
	uint64_t sum = 0, credit = credit_of(worker);
	uint64_t last = credit < worker->opened ? credit : worker->opened;
	for (uint64_t q = worker->done + 1; q <= last && q <= worker->done + AHEAD_MOST; q++)
		sum += expected_ns(worker, q);
	return sum;
}

void work_time(struct worker *worker, uint64_t done_before, unsigned sharers, uint64_t now)
{
	/* A process without unfinished work may have been idle for any part of that time. */
	bool measured = sharers && worker->timed_at && worker->done < credit_of(worker);
	if (measured)
		worker->busy_ns += (now - worker->timed_at) / sharers;
	worker->timed_at = worker->pending ? now : 0;
	if (worker->done == done_before && (measured || !worker->timed_at))
		return;
	/* An entry that does not advance busy_ns starts over: nothing is learned up to it. */
	struct aliquot_credit_slice *credit = worker->credit;
	uint32_t timed = atomic_load_explicit(&credit->timed, memory_order_relaxed);
	struct aliquot_timing *timing = &credit->timings[timed % ALIQUOT_TIMINGS];
	atomic_store_explicit(&timing->quantum, worker->done, memory_order_relaxed);
	atomic_store_explicit(&timing->busy_ns, worker->busy_ns, memory_order_relaxed);
	atomic_store_explicit(&credit->timed, timed + 1, memory_order_release);
}

static void set_credit(struct worker *worker, uint64_t value)
{
	if (credit_of(worker) != value)
		atomic_store_explicit(&worker->credit->credit, value, memory_order_release);
}

/* Estimates of processes may be far off: one that runs out of credit gets more. */
static void adapt_stretch(struct worker *worker)
{
	if (worker->pending && worker->given && worker->done >= worker->given)
		worker->stretch = worker->stretch < STRETCH_MOST ? worker->stretch * 2 : STRETCH_MOST;
	else
		worker->stretch = worker->stretch > 1 ? worker->stretch * STRETCH_DECAY : 1;
}

/* How long its next quanta may take. */
static uint64_t time_until_due(const struct worker *worker, const struct turns_due *due)
{
	uint64_t next = expected_ns(worker, worker->done + 1);
	return next > due->period_ns / 2 ? TURNS_NEVER : due->in_ns;
}

void work_give(struct worker *worker, uint64_t ahead_ns, const struct turns_due *due, uint64_t now)
{
	uint64_t target = worker->done, sum = 0, available = time_until_due(worker, due);
	adapt_stretch(worker);
	double wanted = (double)ahead_ns * worker->stretch;
	bool is_short = false;
	while (!is_short && (target < worker->done + AHEAD_LEAST ||
	                     ((double)sum < wanted && target < worker->done + AHEAD_MOST))) {
		sum += expected_ns(worker, target + 1);
		is_short = sum + sum / DUE_MARGIN > available;
		target += !is_short;
	}
	worker->given = is_short ? 0 : target;
	if (credit_of(worker) >= target)
		return;
	set_credit(worker, target);
	worker->moved_at = now;
}

void work_limit(struct worker *worker, uint64_t quanta)
{
	set_credit(worker, worker->done + quanta);
	worker->given = 0;
}

void work_take_back(struct worker *worker)
{
	if (credit_of(worker) > worker->done + 1)
		work_limit(worker, 1);
}

void work_open(struct worker *worker)
{
	set_credit(worker, ALIQUOT_OPEN);
	worker->given = 0;
	work_set_pace(worker, ALIQUOT_ALONE);
	work_set_ring(worker, false);
}

static void set_word(_Atomic uint32_t *word, uint32_t value)
{
	if (atomic_load_explicit(word, memory_order_relaxed) != value)
		atomic_store_explicit(word, value, memory_order_relaxed);
}

void work_set_pace(struct worker *worker, enum aliquot_pace pace)
{
	set_word(&worker->credit->pace, pace);
}

void work_set_ring(struct worker *worker, bool ring)
{
	set_word(&worker->credit->ring, ring);
}

void work_set_quantum(struct worker *worker, uint32_t ns)
{
	set_word(&worker->credit->quantum_ns, ns);
}
