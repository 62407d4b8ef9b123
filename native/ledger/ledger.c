/* Reserving memory in a ledger and giving it back, by 64-bit words that all processes change without a
 * lock. See ledger.h for the model. The layout of the words:
 *
 *   word     slot:10  turn:16  units:38      units of 512 bytes: 128 TiB
 *   held              turn:16  units:38
 *   pending  minus:1  turn:16  units:38
 *
 * Turns wrap. A helper could go wrong only if it slept through exactly 65,536 changes of one slot
 * that ended on the same units.
 */
#include "aliquot/ledger.h"

#define UNITS_BITS 38
#define TURN_BITS 16
#define UNITS_MASK ((UINT64_C(1) << UNITS_BITS) - 1)
#define TURN_MASK ((UINT64_C(1) << TURN_BITS) - 1)
#define MINUS (UINT64_C(1) << 63)

_Static_assert(ALIQUOT_MAX_PROCESSES <= 1u << (64 - UNITS_BITS - TURN_BITS), "slots fit the word");

/* Each lost round is a change by another process. So many in a row, in some ten milliseconds, are no
 * programs that allocate memory. */
#define FORGET_ROUNDS UINT64_C(100000)

/* The tests stop or kill a process at each of these. */
#ifdef LEDGER_TEST_POINTS
void ledger_test_point(void);
#define POINT() ledger_test_point()
#else
#define POINT() ((void)0)
#endif

static uint64_t units_of(uint64_t word)
{
	return word & UNITS_MASK;
}

static uint64_t turn_of(uint64_t word)
{
	return (word >> UNITS_BITS) & TURN_MASK;
}

static uint32_t slot_of(uint64_t word)
{
	return (uint32_t)(word >> (UNITS_BITS + TURN_BITS)) % ALIQUOT_MAX_PROCESSES;
}

static uint64_t pack(uint64_t turn, uint64_t units)
{
	return (turn & TURN_MASK) << UNITS_BITS | units;
}

static uint64_t pack_word(uint32_t slot, uint64_t turn, uint64_t units)
{
	return (uint64_t)slot << (UNITS_BITS + TURN_BITS) | pack(turn, units);
}

static uint64_t to_units(uint64_t bytes)
{
	uint64_t units = bytes / ALIQUOT_UNIT + (bytes % ALIQUOT_UNIT != 0);
	return units > UNITS_MASK ? UNITS_MASK : units;
}

uint64_t ledger_round(uint64_t bytes)
{
	return to_units(bytes) * ALIQUOT_UNIT;
}

uint64_t ledger_capacity(const struct aliquot_slice_limits *limits)
{
	/* Sequentially consistent with the word: see ledger_reserve and ledger_set_limit. */
	uint64_t limit = atomic_load(&limits->limit_bytes);
	uint64_t reserved = atomic_load_explicit(&limits->driver_bytes, memory_order_relaxed) +
	                    atomic_load_explicit(&limits->headroom_bytes, memory_order_relaxed);
	return reserved < limit ? limit - reserved : 0;
}

/* Whether `held` of its slot does not yet contain the change that `word` describes; *after: `held` with
 * it. */
static bool is_incomplete(const struct aliquot_usage_slice *usage, uint64_t word, uint64_t held,
                          uint64_t *after)
{
	uint64_t turn = turn_of(word);
	if (turn_of(held + (UINT64_C(1) << UNITS_BITS)) != turn)
		return false;
	POINT();
	uint64_t pending = atomic_load(&usage->entries[slot_of(word)].pending);
	if (turn_of(pending) != turn)
		return false;
	uint64_t units = units_of(held), delta = units_of(pending);
	if (pending & MINUS)
		units = delta < units ? units - delta : 0;
	else
		units = (units + delta) & UNITS_MASK;
	*after = pack(turn, units);
	return true;
}

/* Steps 1 and 4: bring `held` of the slot that `word` names up to the turn that `word` names. */
static void complete(struct aliquot_usage_slice *usage, uint64_t word)
{
	struct aliquot_entry *entry = &usage->entries[slot_of(word)];
	uint64_t held = atomic_load(&entry->held), after;
	if (!is_incomplete(usage, word, held, &after))
		return;
	POINT();
	atomic_compare_exchange_strong(&entry->held, &held, after);
}

/* Changes the total by `units` for `slot`. Reads the capacity again in each round; NULL: gives back.
 * *units_now: the new total. False: it does not fit, or others changed the word in each of so many
 * rounds. */
static bool change_total(struct aliquot_usage_slice *usage,
                         const struct aliquot_slice_limits *capacity, uint32_t slot, uint64_t units,
                         uint64_t rounds, uint64_t *units_now)
{
	struct aliquot_entry *entry = &usage->entries[slot];
	uint64_t word = atomic_load(&usage->word);
	while (rounds--) {
		POINT();
		complete(usage, word);
		uint64_t held = atomic_load(&entry->held);
		uint64_t turn = (turn_of(held) + 1) & TURN_MASK;
		uint64_t total = units_of(word), delta = units, minus = 0;
		if (capacity) {
			uint64_t most = ledger_capacity(capacity) / ALIQUOT_UNIT;
			if (delta > most || total > most - delta)
				return false;
			total += delta;
		} else {
			minus = MINUS;
			if (delta > units_of(held))
				delta = units_of(held);
			total = delta < total ? total - delta : 0;
		}
		atomic_store_explicit(&entry->pending, minus | pack(turn, delta), memory_order_release);
		POINT();
		uint64_t next = pack_word(slot, turn, total);
		if (atomic_compare_exchange_weak(&usage->word, &word, next)) {
			POINT();
			complete(usage, next);
			*units_now = total;
			return true;
		}
	}
	return false;
}

static void give_back(struct aliquot_usage_slice *usage, uint32_t slot, uint64_t units)
{
	uint64_t ignored;
	change_total(usage, NULL, slot, units, UINT64_MAX, &ignored);
}

bool ledger_reserve(struct aliquot_usage_slice *usage, const struct aliquot_slice_limits *limits,
                    uint32_t slot, uint64_t bytes)
{
	uint64_t units = to_units(bytes), now;
	if (!change_total(usage, limits, slot, units, UINT64_MAX, &now))
		return false;
	POINT();
	/* ledger_set_limit writes the limit and then reads the total: either it has seen this reservation,
	 * or this code sees the new limit. */
	if (now <= ledger_capacity(limits) / ALIQUOT_UNIT)
		return true;
	give_back(usage, slot, units);
	return false;
}

void ledger_release(struct aliquot_usage_slice *usage, uint32_t slot, uint64_t bytes)
{
	give_back(usage, slot, to_units(bytes));
}

bool ledger_forget(struct aliquot_usage_slice *usage, uint32_t slot)
{
	uint64_t ignored;
	atomic_store(&usage->entries[slot].managed, 0);
	return change_total(usage, NULL, slot, UINT64_MAX, FORGET_ROUNDS, &ignored);
}

uint64_t ledger_total(const struct aliquot_usage_slice *usage)
{
	return units_of(atomic_load(&usage->word)) * ALIQUOT_UNIT;
}

uint64_t ledger_held(const struct aliquot_usage_slice *usage, uint32_t slot)
{
	uint64_t word = atomic_load(&usage->word);
	uint64_t held = atomic_load(&usage->entries[slot].held), after;
	if (slot_of(word) == slot && is_incomplete(usage, word, held, &after))
		held = after;
	return units_of(held) * ALIQUOT_UNIT;
}
