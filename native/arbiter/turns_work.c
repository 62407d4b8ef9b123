#include "turns_work.h"

/* A quantum gets its marks when it is closed. A process that stops launching and waits in a way that
 * is not visible to us leaves it open: after this long it is taken to be done. */
#define STALE_NS UINT64_C(2000000)
#define AHEAD_LEAST 2u
/* Quanta may take this fraction longer than estimated before a latency contender is due. It is small:
 * a quantum that is not started wastes GPU time, and one that is late delays the arrival only by as
 * much as it is late. */
#define DUE_MARGIN 8u
#define STRETCH_MOST 16
#define STRETCH_DECAY 0.99

/* The launching threads of the process read the page: a store that changes nothing would cost them a
 * cache miss. */
static void set_credit(struct worker *worker, uint64_t value)
{
	if (worker->credit == value)
		return;
	worker->credit = value;
	atomic_store_explicit(&worker->credit_page->credit, value, memory_order_release);
}

static void set_word(_Atomic uint32_t *word, uint32_t *given, uint32_t value)
{
	if (*given == value)
		return;
	*given = value;
	atomic_store_explicit(word, value, memory_order_relaxed);
}

void work_connect(struct worker *worker, const struct aliquot_work_slice *work,
                  struct aliquot_credit_slice *credit, uint64_t now)
{
	/* An earlier arbiter may have written timings there that the process has read. */
	uint32_t timed = atomic_load_explicit(&credit->timed, memory_order_relaxed);
	*worker = (struct worker){
		.next = worker->next,
		.work = work,
		.credit_page = credit,
		.timed = timed,
		.pace = UINT32_MAX, /* unknown: the stores below write */
		.ring = UINT32_MAX,
	};
	work_open(worker);
	work_set_quantum(worker, ALIQUOT_QUANTUM_NS);
	work_reset(worker, now);
}

void work_reset(struct worker *worker, uint64_t now)
{
	*worker = (struct worker){.next = worker->next,
	                          .work = worker->work,
	                          .credit_page = worker->credit_page,
	                          .view = worker->view,
	                          .credit = worker->credit,
	                          .pace = worker->pace,
	                          .ring = worker->ring,
	                          .quantum_ns = worker->quantum_ns,
	                          .timed = worker->timed,
	                          .stopped = worker->stopped,
	                          .stretch = 1,
	                          .moved_at = now};
	work_look(worker, now);
}

bool work_is_unheld(const struct worker *worker)
{
	return worker->view.gates == ALIQUOT_GATES_FAIL || worker->view.gates == ALIQUOT_GATES_INVALID;
}

void work_look(struct worker *worker, uint64_t now)
{
	struct aliquot_work_view before = worker->view;
	worker->view = aliquot_work_read(worker->work, &before);
	const struct aliquot_work_view *view = &worker->view;
	if (view->launches != before.launches || view->done != before.done ||
	    view->closed != before.closed || view->opened != before.opened)
		worker->moved_at = now;
	worker->gated = view->gates == ALIQUOT_GATES_WORK;
	bool only_open = view->opened > view->closed && view->done == view->closed;
	if (only_open && view->opened <= worker->credit)
		worker->passed = view->opened;
	only_open &= view->opened == worker->passed;
	bool stale = only_open && now - worker->moved_at >= STALE_NS;
	worker->pending = worker->gated && view->opened > view->done && !stale;
}

bool work_is_drained(const struct worker *worker)
{
	const struct aliquot_work_view *view = &worker->view;
	if (!worker->pending)
		return true;
	if (view->opened > view->closed && view->opened == worker->passed)
		return false;
	return view->done >= (worker->credit < view->closed ? worker->credit : view->closed);
}

/* The estimated time of the n-th quantum that is not done, n < ALIQUOT_AHEAD; it may not even be open
 * yet. */
static uint64_t expected_ns(const struct worker *worker, uint64_t n)
{
	const struct aliquot_work_view *view = &worker->view;
	return n < view->closed - view->done ? view->expected_ns[n] : worker->quantum_ns;
}

uint64_t work_in_hand(const struct worker *worker)
{
	const struct aliquot_work_view *view = &worker->view;
	uint64_t sum = 0;
	uint64_t last = worker->credit < view->opened ? worker->credit : view->opened;
	for (uint64_t n = 0; n < ALIQUOT_AHEAD && view->done + n < last; n++)
		sum += expected_ns(worker, n);
	return sum;
}

void work_time(struct worker *worker, uint64_t done_before, unsigned sharers, uint64_t now)
{
	/* A process without unfinished work may have been idle for any part of that time. */
	bool measured = sharers && worker->timed_at && worker->view.done < worker->credit;
	if (measured)
		worker->busy_ns += (now - worker->timed_at) / sharers;
	worker->timed_at = worker->pending ? now : 0;
	if (worker->view.done == done_before && (measured || !worker->timed_at))
		return;
	/* An entry that does not advance busy_ns starts over: nothing is learned up to it. */
	struct aliquot_credit_slice *page = worker->credit_page;
	struct aliquot_timing *timing = &page->timings[worker->timed % ALIQUOT_TIMINGS];
	atomic_store_explicit(&timing->quantum, worker->view.done, memory_order_relaxed);
	atomic_store_explicit(&timing->busy_ns, worker->busy_ns, memory_order_relaxed);
	atomic_store_explicit(&page->timed, ++worker->timed, memory_order_release);
}

/* Estimates of processes may be far off: one that runs out of credit gets more. */
static void adapt_stretch(struct worker *worker)
{
	bool ran_out = worker->pending && worker->given && worker->view.done >= worker->given;
	worker->stretch *= ran_out ? 2 : STRETCH_DECAY;
	if (worker->stretch > STRETCH_MOST)
		worker->stretch = STRETCH_MOST;
	if (worker->stretch < 1)
		worker->stretch = 1;
}

/* How long its next quanta may take. */
static uint64_t time_until_due(const struct worker *worker, const struct turns_due *due)
{
	return expected_ns(worker, 0) > due->period_ns / 2 ? TURNS_NEVER : due->in_ns;
}

void work_give(struct worker *worker, uint64_t ahead_ns, const struct turns_due *due, uint64_t now)
{
	if (work_is_unheld(worker)) {
		work_limit(worker, 0);
		return;
	}
	uint64_t quanta = 0, sum = 0, available = time_until_due(worker, due);
	adapt_stretch(worker);
	double wanted = (double)ahead_ns * worker->stretch;
	bool is_short = false;
	while (!is_short && quanta < ALIQUOT_AHEAD && (quanta < AHEAD_LEAST || (double)sum < wanted)) {
		sum += expected_ns(worker, quanta);
		is_short = sum + sum / DUE_MARGIN > available;
		quanta += !is_short;
	}
	uint64_t target = worker->view.done + quanta;
	worker->given = is_short ? 0 : target;
	if (worker->credit >= target)
		return;
	set_credit(worker, target);
	worker->moved_at = now;
}

void work_hold_back(struct worker *worker)
{
	worker->given = 0;
}

void work_limit(struct worker *worker, uint64_t quanta)
{
	set_credit(worker, worker->view.done + (work_is_unheld(worker) ? 0 : quanta));
	worker->given = 0;
}

void work_take_back(struct worker *worker)
{
	if (worker->credit > worker->view.done + 1)
		work_limit(worker, 1);
}

void work_open(struct worker *worker)
{
	set_credit(worker, ALIQUOT_OPEN);
	worker->given = 0;
	work_set_pace(worker, ALIQUOT_ALONE);
	work_set_ring(worker, false);
}

void work_set_pace(struct worker *worker, enum aliquot_pace pace)
{
	set_word(&worker->credit_page->pace, &worker->pace, pace);
}

void work_set_ring(struct worker *worker, bool ring)
{
	set_word(&worker->credit_page->ring, &worker->ring, ring);
}

void work_set_quantum(struct worker *worker, uint32_t ns)
{
	set_word(&worker->credit_page->quantum_ns, &worker->quantum_ns, ns);
}
