/* aliquot_work_read on a page that a tenant writes between two looks: it stays within the page, it ends,
 * what it returns is in order and never goes back, and an impossible page stays invalid.
 *
 * The input is the beginning of a slice's page; its second half is written over the page before the
 * second look. Its last byte is how far the process itself knew its work to be done.
 */
#include "aliquot/credit.h"

#include <stdlib.h>
#include <string.h>

#define MUST(condition)                                                                            \
	do {                                                                                           \
		if (!(condition))                                                                          \
			abort();                                                                               \
	} while (0)

static void check(const struct aliquot_work_view *view, const struct aliquot_work_view *before)
{
	MUST(view->done <= view->closed && view->closed <= view->opened);
	MUST(view->opened - view->closed <= 1 && view->closed <= ALIQUOT_QUANTUM_LAST);
	MUST(view->done >= before->done && view->closed >= before->closed);
	MUST(view->opened >= before->opened);
	MUST(view->gates <= ALIQUOT_GATES_INVALID);
	for (uint32_t i = 0; i < ALIQUOT_AHEAD; i++)
		MUST(view->expected_ns[i] <= ALIQUOT_EXPECTED_MOST_NS);
	if (before->gates == ALIQUOT_GATES_INVALID)
		MUST(!memcmp(view, before, sizeof(*view)));
}

/* The process's own look. */
static void check_done(const struct aliquot_work_slice *work, uint64_t known)
{
	uint64_t done = aliquot_work_done(work, known);
	MUST(done >= known && (done == known || done <= atomic_load(&work->closed)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct aliquot_work_slice *work = calloc(1, sizeof(*work));
	struct aliquot_work_view none, first, second, third;
	if (!work)
		return 0;
	size_t half = size / 2;
	memset(&none, 0, sizeof(none));
	memcpy(work, data, size < sizeof(*work) ? size : sizeof(*work));
	if (!aliquot_work_check(work, 1, size))
		MUST(size >= sizeof(*work));
	check_done(work, size ? data[size - 1] : 0);
	check_done(work, UINT64_MAX - (size ? data[size - 1] : 0));
	first = aliquot_work_read(work, &none);
	check(&first, &none);
	memcpy(work, data + half, size - half < sizeof(*work) ? size - half : sizeof(*work));
	second = aliquot_work_read(work, &first);
	check(&second, &first);
	third = aliquot_work_read(work, &second); /* nothing has changed */
	check(&third, &second);
	MUST(third.done == second.done && third.gates == second.gates);
	free(work);
	return 0;
}
