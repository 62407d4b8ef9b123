/* Many writers at once, each with a slot of its own: the total never passes the limit, and when all
 * have given back it is zero. As threads, so that ThreadSanitizer sees every access. */
#include "aliquot/ledger.h"

#include "../check.h"

#include <pthread.h>
#include <stdatomic.h>

enum { WRITERS = 16, ROUNDS = 40000, LIMIT_UNITS = 1000 };

static struct aliquot_usage_slice usage;
static struct aliquot_slice_limits limits;
static _Atomic bool writing = true;
static _Atomic uint64_t really_held; /* a second witness: what successful reservations add up to */

static void *write_on(void *argument)
{
	uint32_t slot = (uint32_t)(uintptr_t)argument;
	uint64_t seed = slot * UINT64_C(0x9e3779b97f4a7c15) + 1, mine = 0;
	for (unsigned i = 0; i < ROUNDS; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
		uint64_t units = (seed >> 33) % 120 + 1;
		if ((seed >> 60) % 2 && ledger_reserve(&usage, &limits, slot, units * ALIQUOT_UNIT)) {
			CHECK(atomic_fetch_add(&really_held, units) + units <= LIMIT_UNITS);
			mine += units;
		} else if (mine) {
			units = units < mine ? units : mine;
			atomic_fetch_sub(&really_held, units);
			ledger_release(&usage, slot, units * ALIQUOT_UNIT);
			mine -= units;
		}
		CHECK(ledger_held(&usage, slot) == mine * ALIQUOT_UNIT);
	}
	atomic_fetch_sub(&really_held, mine);
	ledger_release(&usage, slot, mine * ALIQUOT_UNIT);
	return NULL;
}

static void *watch(void *unused)
{
	(void)unused;
	while (writing)
		CHECK(ledger_total(&usage) <= LIMIT_UNITS * ALIQUOT_UNIT);
	return NULL;
}

int main(void)
{
	pthread_t writers[WRITERS], watcher;
	limits.gpu_bytes = limits.limit_bytes = LIMIT_UNITS * ALIQUOT_UNIT;
	CHECK(pthread_create(&watcher, NULL, watch, NULL) == 0);
	for (uintptr_t i = 0; i < WRITERS; i++)
		CHECK(pthread_create(&writers[i], NULL, write_on, (void *)(i * 61)) == 0);
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(writers[i], NULL);
	writing = false;
	pthread_join(watcher, NULL);
	CHECK(ledger_total(&usage) == 0);
	return 0;
}
