/* What a launch costs: how long the GPU will take for it, learned from how long quanta took.
 *
 * The model. A launch has a key: what is launched, and the power of two that its number of blocks
 * begins with. A quantum is expected to take the sum of what its launches cost, and a launch whose
 * key nobody has measured counts as `unknown_ns`. Then somebody tells how long some quanta took:
 *   - what the known launches in them leave belongs to the unknown ones: a quantum that held one key
 *     tells what that costs, and `unknown_ns` moves towards what an unknown launch took;
 *   - where all were known, the difference is spread over the quanta that held one key, and each key
 *     moves a quarter of its part.
 * What quanta of several keys are off by all together is in `scale`: a sum of costs is divided by it
 * before it is called a time.
 * To be measured at all a launch stands alone in its quantum now and then (cost_is_due).
 *
 * Guarantees: no clock, no system call, no driver, no allocation. Costs lie between 1 ns and 4 s,
 * whatever is learned. Readers need no lock: every word is read and written whole, and a cost that is
 * replaced under a reader is a wrong estimate and nothing worse. Learning is for one thread at a time.
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

/* On the way of every launch. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* One key's. */
struct cost {
	_Atomic uint64_t key;      /* 0: nobody's place */
	_Atomic uint32_t ns;       /* of one launch; 0: not known yet */
	_Atomic uint32_t launches; /* counted while turns are taken */
};

/* What was expected of one quantum. */
struct cost_quantum {
	uint64_t quantum;
	uint64_t key;         /* of all its launches; 0: they had several */
	uint64_t expected_ns; /* in all */
	uint64_t known_ns;    /* of it, for launches whose cost was known */
	uint32_t launches;    /* in all */
	uint32_t unknown;     /* of them, those whose cost was not */
};

struct costs {
	_Atomic uint32_t unknown_ns;
	_Atomic uint32_t scale;      /* what was expected of the last quanta for 1024 that they took */
	double expected_ns, took_ns; /* of them */
	uint32_t hand;               /* the next place to be given to another key */
	struct cost_quantum quanta[ALIQUOT_QUANTA];
	struct cost places[COST_SETS][COST_WAYS];
};

/* From all-zero memory. */
void costs_init(struct costs *costs);

/* The key of a launch; never 0 for a function that is not NULL. */
ALWAYS_INLINE uint64_t cost_key(const void *function, uint64_t blocks)
{
	return (uint64_t)(uintptr_t)function ^ (uint64_t)(64 - __builtin_clzll(blocks | 1)) << 57;
}

/* The key's place; NULL: it has none. */
ALWAYS_INLINE struct cost *cost_find(struct costs *costs, uint64_t key)
{
	struct cost *set = costs->places[key * UINT64_C(0x9e3779b97f4a7c15) >> 54];
	for (unsigned i = 0; i < COST_WAYS; i++)
		if (atomic_load_explicit(&set[i].key, memory_order_relaxed) == key)
			return &set[i];
	return NULL;
}

/* What one launch of it costs; 0: nobody knows. */
ALWAYS_INLINE uint32_t cost_of(const struct cost *cost)
{
	return cost ? atomic_load_explicit(&cost->ns, memory_order_relaxed) : 0;
}

/* The sum of costs that takes so long, and how long a sum of costs takes. */
static inline uint64_t cost_of_time(const struct costs *costs, uint64_t ns)
{
	return ns * atomic_load_explicit(&costs->scale, memory_order_relaxed) / COST_SCALE;
}

static inline uint64_t cost_as_time(const struct costs *costs, uint64_t cost)
{
	return cost * COST_SCALE / atomic_load_explicit(&costs->scale, memory_order_relaxed);
}

/* Whether the launch of this number is to be measured: the 1st, 2nd, 4th, 8th ... and at last every
 * 4096th. */
ALWAYS_INLINE bool cost_is_due(uint32_t number)
{
	if (number > COST_MEASURED_EVERY)
		return number % COST_MEASURED_EVERY == 0;
	return (number & (number - 1)) == 0;
}

/* The key's place, taken from another if it must be. */
struct cost *cost_place(struct costs *costs, uint64_t key);

/* What had this key is gone; its handle may become another's. */
void cost_forget(struct costs *costs, uint64_t key);

/* A quantum is closed. */
void cost_remember(struct costs *costs, const struct cost_quantum *quantum);

/* The quanta first..last took so long in all. */
void cost_learn(struct costs *costs, uint64_t first, uint64_t last, uint64_t ns);

#endif
