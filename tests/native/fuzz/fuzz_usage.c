/* The ledger's operations on a page that a tenant scribbled on: they stay within it, they end, and
 * what they give back is never more than there was.
 *
 * The input is the beginning of a slice's part of the page; its last byte chooses the slot.
 */
#include "aliquot/ledger.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct aliquot_slice_limits limits = {.gpu_bytes = UINT64_MAX};
	struct aliquot_usage_slice *usage = calloc(1, sizeof(*usage));
	if (!usage)
		return 0;
	memcpy(usage, data, size < sizeof(*usage) ? size : sizeof(*usage));
	atomic_store(&limits.limit_bytes, UINT64_C(1) << 40);
	uint32_t slot = size ? data[size - 1] % ALIQUOT_MAX_PROCESSES : 0;
	uint64_t before = ledger_total(usage);
	ledger_held(usage, slot);
	(void)ledger_forget(usage, slot);
	if (ledger_total(usage) > before || ledger_held(usage, slot) != 0)
		abort();
	if (ledger_reserve(usage, &limits, slot, 4096) && ledger_total(usage) > UINT64_C(1) << 40)
		abort();
	ledger_release(usage, slot, 4096);
	free(usage);
	return 0;
}
