/* What a launch costs: how long the GPU will take for it, learned from how long quanta took.
 *
 * The model. A launch has a key: what is launched, and its number of blocks rounded down to a power
 * of two. A quantum is expected to take the sum of its launches' costs; a launch whose key was
 * never measured counts as `unknown_ns`. Then cost_learn says how long some quanta really took:
 *   - If some of their launches were unknown, the known launches' costs are subtracted, and the
 *     rest belongs to the unknown ones. A quantum of one key gives that key its cost, and
 *     `unknown_ns` moves towards what an unknown launch took.
 *   - If all were known, the difference is spread over the quanta of one key, and each key moves a
 *     quarter of its part.
 * `scale` holds the error that remains over many quanta: a sum of costs divided by it is a time. To
 * be measured at all, a launch is alone in its quantum now and then (cost_is_due).
 *
 * Guarantees: no clock, no system call, no driver call, no allocation. Costs stay between 1 ns and
 * 4 s, whatever is learned. Readers need no lock: every word is read and written whole, and a cost
 * that is replaced under a reader is a wrong estimate and nothing worse. Only one thread at a time
 * may learn.
 */
#ifndef ALIQUOT_COST_H
#define ALIQUOT_COST_H

#include "aliquot/credit.h"

#include <stdbool.h>

#define COST_UNKNOWN_NS 10000u /* before anything is learned */
#define COST_SCALE 1024u
#define COST_SETS 1024u
#define COST_WAYS 4u
#define COST_MEASURED_EVERY 4096u

/* For functions that every launch runs through. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* The cost of one key. */
struct cost {
	_Atomic uint64_t key;      /* 0: the slot is empty */
	_Atomic uint32_t ns;       /* of one launch; 0: not known yet */
	_Atomic uint32_t launches; /* while processes take turns */
};

/* What was expected of one quantum. */
struct cost_quantum {
	uint64_t quantum;
	uint64_t key;         /* of all its launches; 0: they had several */
	uint64_t expected_ns; /* in all */
	uint64_t known_ns;    /* the part for launches whose cost was known */
	uint32_t launches;    /* in all */
	uint32_t unknown;     /* the launches whose cost was not known */
};

struct costs {
	_Atomic uint32_t unknown_ns;
	_Atomic uint32_t scale; /* expected time / real time of the last quanta, times COST_SCALE */
	double expected_ns, took_ns; /* both sums, of the last quanta */
	uint32_t hand;               /* the next slot to be given to another key */
	struct cost_quantum quanta[ALIQUOT_QUANTA];
	struct cost slots[COST_SETS][COST_WAYS];
};

/* Precondition: the memory is all zero. */
void costs_init(struct costs *costs);

/* The key of a launch; never 0 for a function that is not NULL. */
ALWAYS_INLINE uint64_t cost_key(const void *function, uint64_t blocks)
{
	return (uint64_t)(uintptr_t)function ^ (uint64_t)(64 - __builtin_clzll(blocks | 1)) << 57;
}

/* The key's slot; NULL: it has none. */
ALWAYS_INLINE struct cost *cost_find(struct costs *costs, uint64_t key)
{
	struct cost *set = costs->slots[key * UINT64_C(0x9e3779b97f4a7c15) >> 54];
	for (unsigned i = 0; i < COST_WAYS; i++)
		if (atomic_load_explicit(&set[i].key, memory_order_relaxed) == key)
			return &set[i];
	return NULL;
}

/* What one launch costs; 0: not known. */
ALWAYS_INLINE uint32_t cost_of(const struct cost *cost)
{
	return cost ? atomic_load_explicit(&cost->ns, memory_order_relaxed) : 0;
}

/* The sum of costs that takes `ns`, and the time that a sum of costs takes. */
static inline uint64_t cost_of_time(const struct costs *costs, uint64_t ns)
{
	return ns * atomic_load_explicit(&costs->scale, memory_order_relaxed) / COST_SCALE;
}

static inline uint64_t cost_as_time(const struct costs *costs, uint64_t cost)
{
	return cost * COST_SCALE / atomic_load_explicit(&costs->scale, memory_order_relaxed);
}

/* Whether the launch with this number is to be measured: the 1st, 2nd, 4th, 8th ... and from the
 * 4096th on every 4096th. */
ALWAYS_INLINE bool cost_is_due(uint32_t number)
{
	if (number > COST_MEASURED_EVERY)
		return number % COST_MEASURED_EVERY == 0;
	return (number & (number - 1)) == 0;
}

/* The key's slot, taken from another key if none is empty. */
struct cost *cost_slot(struct costs *costs, uint64_t key);

/* What had this key was destroyed: something else may get its handle. */
void cost_forget(struct costs *costs, uint64_t key);

/* Remember a quantum that was closed. */
void cost_remember(struct costs *costs, const struct cost_quantum *quantum);

/* The quanta first..last took `ns` in all. */
void cost_learn(struct costs *costs, uint64_t first, uint64_t last, uint64_t ns);

#endif
