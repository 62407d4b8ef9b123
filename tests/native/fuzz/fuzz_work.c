/* aliquot_work_check and aliquot_work_done on a page that a tenant wrote: they stay within it, they end,
 * and what they say is over is never more than what the page calls closed, nor less than was known.
 *
 * The input is the beginning of a slice's page; its last byte is what was known before.
 */
#include "aliquot/credit.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct aliquot_work_slice *work = calloc(1, sizeof(*work));
	if (!work)
		return 0;
	memcpy(work, data, size < sizeof(*work) ? size : sizeof(*work));
	uint64_t known = size ? data[size - 1] : 0, closed = work->closed;
	uint64_t done = aliquot_work_done(work, known);
	if (done < known || (done > known && done > closed))
		abort();
	if (!aliquot_work_check(work, 1, size) && size < sizeof(*work))
		abort();
	free(work);
	return 0;
}
