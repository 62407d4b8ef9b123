/* A limit that is moved while many reserve: what stands never passes a limit that was set. As threads,
 * so that ThreadSanitizer sees every access. */
#include "aliquot/ledger.h"

#include "../check.h"

#include <pthread.h>
#include <stdatomic.h>

enum { WRITERS = 6, MOVES = 2000, MOST_UNITS = 4000, LOOKS = 20 };

static struct aliquot_usage_slice usage;
static struct aliquot_slice_limits limits;
static _Atomic bool writing = true;
/* A second witness: what successful reservations add up to, never more than what stands. */
static _Atomic uint64_t really_held;

static uint64_t next(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return *seed >> 33;
}

static void *write_on(void *argument)
{
	uint32_t slot = (uint32_t)(uintptr_t)argument;
	uint64_t seed = slot + 1, mine = 0;
	while (writing) {
		uint64_t units = next(&seed) % 300 + 1;
		if (next(&seed) % 3 && ledger_reserve(&usage, &limits, slot, units * ALIQUOT_UNIT)) {
			atomic_fetch_add(&really_held, units);
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

static void move_the_limit(void)
{
	uint64_t seed = 7, lowered = 0, refused = 0;
	/* Moves that meet nobody prove nothing: as many as it takes. */
	while (lowered < MOVES || refused < MOVES) {
		uint64_t before = limits.limit_bytes, used;
		/* Up, or down to where the next reservation would pass it. */
		uint64_t wanted = MOST_UNITS * ALIQUOT_UNIT;
		if (next(&seed) % 2)
			wanted = ledger_total(&usage) + next(&seed) % 100 * ALIQUOT_UNIT;
		bool set = ledger_set_limit(&usage, &limits, &limits, wanted, &used);
		CHECK(limits.limit_bytes == (set ? wanted : before));
		CHECK(set || used > wanted);
		lowered += set && wanted < before;
		refused += !set;
		for (unsigned look = 0; look < LOOKS; look++)
			CHECK(really_held * ALIQUOT_UNIT <= limits.limit_bytes);
	}
}

int main(void)
{
	pthread_t writers[WRITERS];
	limits.gpu_bytes = limits.limit_bytes = MOST_UNITS * ALIQUOT_UNIT;
	for (uintptr_t i = 0; i < WRITERS; i++)
		CHECK(pthread_create(&writers[i], NULL, write_on, (void *)(i * 61)) == 0);
	move_the_limit();
	writing = false;
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(writers[i], NULL);
	CHECK(ledger_total(&usage) == 0);
	return 0;
}
