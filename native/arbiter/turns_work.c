#include "turns_work.h"

/* An open quantum gets its mark when it is closed. A process that stopped launching and waits in a way
 * we do not see leaves it open: after this long what is in it is taken to be over. */
#define STALE_NS UINT64_C(2000000)
#define AHEAD_LEAST 2u
#define AHEAD_MOST 64u
/* The part by which a quantum may take longer than expected where somebody else is due. A small one:
 * what is held back before each arrival is time that nobody uses, and a quantum that is late costs who
 * comes no more than it is late by. */
#define DUE_MARGIN 8u
#define STRETCH_MOST 16
#define STRETCH_DECAY 0.99

static uint64_t credit_of(const struct worker *worker)
{
	return atomic_load_explicit(&worker->credit->credit, memory_order_relaxed);
}

/* Its words are the process's own: whatever they are, the arbiter's are in order. */
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

/* How long a quantum should take that may not even be open. */
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
	/* One that has nothing left to do at this look may have been idle since any time. */
	bool measured = sharers && worker->timed_at && worker->done < credit_of(worker);
	if (measured)
		worker->busy_ns += (now - worker->timed_at) / sharers;
	worker->timed_at = worker->pending ? now : 0;
	if (worker->done == done_before && (measured || !worker->timed_at))
		return;
	/* An entry that does not advance busy_ns begins anew: nothing is learned up to it. */
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

/* What processes expect of their quanta may be far off: who has run out of credit gets more. */
static void adapt(struct worker *worker)
{
	if (worker->pending && worker->given && worker->done >= worker->given)
		worker->stretch = worker->stretch < STRETCH_MOST ? worker->stretch * 2 : STRETCH_MOST;
	else
		worker->stretch = worker->stretch > 1 ? worker->stretch * STRETCH_DECAY : 1;
}

/* How long its next quanta may take. */
static uint64_t room_of(const struct worker *worker, const struct turns_due *due)
{
	uint64_t next = expected_ns(worker, worker->done + 1);
	return next > due->period_ns / 2 ? TURNS_NEVER : due->in_ns;
}

void work_give(struct worker *worker, uint64_t ahead_ns, const struct turns_due *due, uint64_t now)
{
	uint64_t target = worker->done, sum = 0, room = room_of(worker, due);
	adapt(worker);
	double wanted = (double)ahead_ns * worker->stretch;
	bool is_short = false;
	while (!is_short && (target < worker->done + AHEAD_LEAST ||
	                     ((double)sum < wanted && target < worker->done + AHEAD_MOST))) {
		sum += expected_ns(worker, target + 1);
		is_short = sum + sum / DUE_MARGIN > room;
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

static void set(_Atomic uint32_t *word, uint32_t value)
{
	if (atomic_load_explicit(word, memory_order_relaxed) != value)
		atomic_store_explicit(word, value, memory_order_relaxed);
}

void work_set_pace(struct worker *worker, enum aliquot_pace pace)
{
	set(&worker->credit->pace, pace);
}

void work_set_ring(struct worker *worker, bool ring)
{
	set(&worker->credit->ring, ring);
}

void work_set_quantum(struct worker *worker, uint32_t ns)
{
	set(&worker->credit->quantum_ns, ns);
}
