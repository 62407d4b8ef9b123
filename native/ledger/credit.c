/* Checks credit and work pages, and reads what a work page says. */
#include "aliquot/credit.h"

const char *aliquot_credit_check(const struct aliquot_credit *credit, size_t size)
{
	if (size < sizeof(*credit))
		return "credit: shorter than its layout";
	if (credit->magic != ALIQUOT_CREDIT_MAGIC)
		return "credit: not a credit page";
	if (credit->version != ALIQUOT_VERSION || credit->size != ALIQUOT_CREDIT_SIZE)
		return "credit: written by another version of Aliquot";
	return NULL;
}

const char *aliquot_work_check(const struct aliquot_work_slice *work, uint32_t slices, size_t size)
{
	if (slices > ALIQUOT_MAX_GPUS || size < slices * sizeof(*work))
		return "work: shorter than its layout";
	for (uint32_t i = 0; i < slices; i++) {
		if (work[i].magic != ALIQUOT_WORK_MAGIC)
			return "work: not a work page";
		if (work[i].version != ALIQUOT_VERSION || work[i].size != ALIQUOT_WORK_SIZE)
			return "work: written by another version of Aliquot";
	}
	return NULL;
}

/* The number of marks that the GPU has reached, in all streams together (wraps). */
static uint32_t marks_done(const struct aliquot_work_slice *work)
{
	uint32_t sum = 0, end = atomic_load_explicit(&work->marks_end, memory_order_acquire);
	for (uint32_t i = 0; i < end && i < ALIQUOT_MARKS; i++)
		sum += (uint32_t)atomic_load_explicit(&work->marks[i].done, memory_order_relaxed);
	return sum;
}

/* The newest done quantum of those up to `closed`. Loops at most ALIQUOT_QUANTA times: a process is
 * never further ahead of its GPU. */
static uint64_t newest_done(const struct aliquot_work_slice *work, uint64_t known, uint64_t closed)
{
	uint32_t done = marks_done(work);
	if (closed > known && closed - known > ALIQUOT_QUANTA)
		known = closed - ALIQUOT_QUANTA;
	while (known < closed) {
		const struct aliquot_quantum *next = &work->quanta[(known + 1) % ALIQUOT_QUANTA];
		if ((int32_t)(done - atomic_load_explicit(&next->marks, memory_order_relaxed)) < 0)
			break;
		known++;
	}
	return known;
}

uint64_t aliquot_work_done(const struct aliquot_work_slice *work, uint64_t known)
{
	return newest_done(work, known, atomic_load_explicit(&work->closed, memory_order_acquire));
}

static uint32_t expected_ns(const struct aliquot_work_slice *work, uint64_t quantum)
{
	uint32_t ns = atomic_load_explicit(&work->quanta[quantum % ALIQUOT_QUANTA].expected_ns,
	                                   memory_order_relaxed);
	return ns < ALIQUOT_EXPECTED_MOST_NS ? ns : ALIQUOT_EXPECTED_MOST_NS;
}

/* The estimates of the quanta after `known` up to `done`, of which ALIQUOT_QUANTA at most are recorded. */
static uint64_t sum_expected(const struct aliquot_work_slice *work, uint64_t known, uint64_t done)
{
	uint64_t sum = 0;
	if (done - known > ALIQUOT_QUANTA)
		known = done - ALIQUOT_QUANTA;
	while (known < done)
		sum += expected_ns(work, ++known);
	return sum;
}

struct aliquot_work_view aliquot_work_read(const struct aliquot_work_slice *work,
                                           const struct aliquot_work_view *before)
{
	uint64_t closed = atomic_load_explicit(&work->closed, memory_order_acquire);
	uint64_t opened = atomic_load_explicit(&work->opened, memory_order_acquire);
	uint32_t gates = atomic_load_explicit(&work->gates, memory_order_relaxed);
	struct aliquot_work_view view = *before;
	view.finished_ns = 0;
	if (before->gates == ALIQUOT_GATES_INVALID || gates >= ALIQUOT_GATES_INVALID ||
	    closed < before->closed || opened < before->opened || opened < closed ||
	    closed > ALIQUOT_QUANTUM_LAST || (opened && gates == ALIQUOT_GATES_UNTRIED)) {
		view.gates = ALIQUOT_GATES_INVALID;
		return view;
	}
	view.gates = (enum aliquot_gates)gates;
	view.why = atomic_load_explicit(&work->why, memory_order_relaxed);
	view.launches = atomic_load_explicit(&work->launches, memory_order_relaxed);
	view.done = newest_done(work, before->done, closed);
	view.finished_ns = sum_expected(work, before->done, view.done);
	view.closed = closed;
	/* The process may have closed some and opened the next between the two reads. */
	view.opened = opened > closed ? closed + 1 : closed;
	for (uint32_t i = 0; i < ALIQUOT_AHEAD && i < closed - view.done; i++)
		view.expected_ns[i] = expected_ns(work, view.done + 1 + i);
	return view;
}
