/* Checks credit and work pages, and counts the finished quanta of a work page. */
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

uint64_t aliquot_work_done(const struct aliquot_work_slice *work, uint64_t known)
{
	uint64_t closed = atomic_load_explicit(&work->closed, memory_order_acquire);
	uint32_t done = marks_done(work);
	/* Bounds the loop, whatever a tenant wrote to the page. */
	if (closed > known + ALIQUOT_QUANTA)
		known = closed - ALIQUOT_QUANTA;
	while (known < closed) {
		const struct aliquot_quantum *next = &work->quanta[(known + 1) % ALIQUOT_QUANTA];
		if ((int32_t)(done - atomic_load_explicit(&next->marks, memory_order_relaxed)) < 0)
			break;
		known++;
	}
	return known;
}
