/* The ledger through its own door, in one process: what fits, what does not, what comes back. */
#include "aliquot/ledger.h"

#include "../check.h"

#include <string.h>

static struct aliquot_usage_slice usage;
static struct aliquot_slice_limits limits;

static void start(uint64_t limit)
{
	memset(&usage, 0, sizeof(usage));
	memset(&limits, 0, sizeof(limits));
	limits.gpu_bytes = limits.limit_bytes = limit;
}

static void fits_up_to_the_limit_and_not_one_unit_more(void)
{
	start(10 * ALIQUOT_UNIT);
	CHECK(ledger_reserve(&usage, &limits, 3, 9 * ALIQUOT_UNIT));
	CHECK(!ledger_reserve(&usage, &limits, 4, 2 * ALIQUOT_UNIT));
	CHECK(ledger_reserve(&usage, &limits, 4, 1));
	CHECK(!ledger_reserve(&usage, &limits, 4, 1));
	CHECK(ledger_total(&usage) == 10 * ALIQUOT_UNIT);
	CHECK(ledger_held(&usage, 3) == 9 * ALIQUOT_UNIT);
	CHECK(ledger_held(&usage, 4) == ALIQUOT_UNIT);
}

static void driver_bytes_and_headroom_reduce_the_capacity(void)
{
	start(100 * ALIQUOT_UNIT);
	limits.driver_bytes = 40 * ALIQUOT_UNIT;
	limits.headroom_bytes = 10 * ALIQUOT_UNIT;
	CHECK(ledger_capacity(&limits) == 50 * ALIQUOT_UNIT);
	CHECK(ledger_reserve(&usage, &limits, 0, 50 * ALIQUOT_UNIT));
	CHECK(!ledger_reserve(&usage, &limits, 0, 1));
	limits.driver_bytes = 200 * ALIQUOT_UNIT;
	CHECK(ledger_capacity(&limits) == 0);
	CHECK(!ledger_reserve(&usage, &limits, 0, 1));
}

static void impossible_sizes_are_refused(void)
{
	start(UINT64_C(1) << 46);
	CHECK(!ledger_reserve(&usage, &limits, 0, UINT64_MAX));
	CHECK(!ledger_reserve(&usage, &limits, 0, (UINT64_C(1) << 46) + 1));
	CHECK(ledger_total(&usage) == 0);
	CHECK(ledger_round(1) == ALIQUOT_UNIT);
	CHECK(ledger_round(0) == 0);
}

static void giving_back_never_takes_from_others(void)
{
	start(100 * ALIQUOT_UNIT);
	CHECK(ledger_reserve(&usage, &limits, 1, 10 * ALIQUOT_UNIT));
	CHECK(ledger_reserve(&usage, &limits, 2, 20 * ALIQUOT_UNIT));
	ledger_release(&usage, 1, 50 * ALIQUOT_UNIT);
	CHECK(ledger_held(&usage, 1) == 0);
	CHECK(ledger_total(&usage) == 20 * ALIQUOT_UNIT);
	ledger_forget(&usage, 2);
	CHECK(ledger_total(&usage) == 0);
}

static void a_limit_is_never_lowered_below_what_is_in_use(void)
{
	uint64_t used = 0, mib = UINT64_C(1) << 20;
	start(100 * mib);
	limits.driver_bytes = 10 * mib;
	CHECK(ledger_reserve(&usage, &limits, 0, 50 * mib));
	CHECK(!ledger_set_limit(&usage, &limits, &limits, 60 * mib - 1, &used));
	CHECK(used == 60 * mib);
	CHECK(limits.limit_bytes == 100 * mib && limits.headroom_bytes == 0);
	CHECK(ledger_set_limit(&usage, &limits, &limits, 60 * mib, &used));
	CHECK(limits.limit_bytes == 60 * mib && limits.headroom_bytes == ledger_headroom(60 * mib));
	CHECK(!ledger_reserve(&usage, &limits, 0, 1));
	CHECK(ledger_set_limit(&usage, &limits, &limits, 200 * mib, &used));
	CHECK(ledger_reserve(&usage, &limits, 0, 100 * mib));
}

static void a_limit_below_what_the_driver_took_may_be_raised(void)
{
	uint64_t used;
	start(100 * ALIQUOT_UNIT);
	limits.driver_bytes = 300 * ALIQUOT_UNIT;
	CHECK(!ledger_set_limit(&usage, &limits, &limits, 99 * ALIQUOT_UNIT, &used));
	CHECK(ledger_set_limit(&usage, &limits, &limits, 200 * ALIQUOT_UNIT, &used));
	CHECK(used == 300 * ALIQUOT_UNIT);
}

static void headroom_follows_the_limit(void)
{
	CHECK(ledger_headroom(UINT64_C(64) << 20) == UINT64_C(1) << 20);
	CHECK(ledger_headroom(UINT64_C(80) << 30) == UINT64_C(32) << 20);
	CHECK(ledger_headroom((UINT64_C(1) << 20) + 7) % ALIQUOT_UNIT == 0);
}

static void turns_may_wrap(void)
{
	start(100 * ALIQUOT_UNIT);
	CHECK(ledger_reserve(&usage, &limits, 1, 7 * ALIQUOT_UNIT));
	for (unsigned i = 0; i < 200000; i++) {
		CHECK(ledger_reserve(&usage, &limits, i % 3, ALIQUOT_UNIT));
		ledger_release(&usage, i % 3, ALIQUOT_UNIT);
	}
	CHECK(ledger_total(&usage) == 7 * ALIQUOT_UNIT);
	CHECK(ledger_held(&usage, 1) == 7 * ALIQUOT_UNIT);
}

int main(void)
{
	fits_up_to_the_limit_and_not_one_unit_more();
	driver_bytes_and_headroom_reduce_the_capacity();
	impossible_sizes_are_refused();
	giving_back_never_takes_from_others();
	a_limit_is_never_lowered_below_what_is_in_use();
	a_limit_below_what_the_driver_took_may_be_raised();
	headroom_follows_the_limit();
	turns_may_wrap();
	return 0;
}
