/* Changing the limit of a slice while programs reserve memory in it: see also ledger_reserve. */
#include "aliquot/ledger.h"

#define HEADROOM_MOST (UINT64_C(32) << 20)
#define HEADROOM_PART 64

uint64_t ledger_headroom(uint64_t limit)
{
	uint64_t headroom = limit / HEADROOM_PART;
	if (headroom > HEADROOM_MOST)
		headroom = HEADROOM_MOST;
	return headroom - headroom % ALIQUOT_UNIT;
}

uint64_t ledger_in_use(const struct aliquot_usage_slice *usage,
                       const struct aliquot_slice_limits *limits)
{
	return ledger_total(usage) + atomic_load(&limits->driver_bytes);
}

uint64_t ledger_context_estimate(uint64_t limit)
{
	const uint64_t most = UINT64_C(512) << 20;
	return ledger_round(limit / 4 < most ? limit / 4 : most);
}

bool ledger_set_limit(struct aliquot_usage_slice *usage, struct aliquot_slice_limits *record,
                      struct aliquot_slice_limits *view, uint64_t bytes, uint64_t *used)
{
	uint64_t before = atomic_load(&record->limit_bytes);
	*used = ledger_in_use(usage, record);
	if (bytes < before && *used > bytes)
		return false; /* no reservation may fail because of a limit that is not kept */
	/* Killed between the two, the arbiter leaves a record that is not below what programs can reserve. */
	if (bytes > before)
		atomic_store(&record->limit_bytes, bytes);
	/* An exchange, because an emulator may reorder a plain store with the read below. */
	atomic_exchange(&view->limit_bytes, bytes);
	*used = ledger_in_use(usage, record);
	if (bytes < before && *used > bytes) {
		atomic_store(&view->limit_bytes, before);
		return false;
	}
	atomic_store(&record->limit_bytes, bytes);
	atomic_store(&record->headroom_bytes, ledger_headroom(bytes));
	atomic_store(&view->headroom_bytes, ledger_headroom(bytes));
	return true;
}
