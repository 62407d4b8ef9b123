#include "cost.h"

#define LONGEST_NS 4e9
/* A figure moves 1/PART of the way to what was measured. */
#define UNKNOWN_PART 8
#define KNOWN_PART 4
#define SCALE_PART 32
#define SCALE_MOST (16.0 * COST_SCALE)
#define SCALE_LEAST (COST_SCALE / 16.0)

/* What was expected of several quanta together. */
struct sum {
	double expected_ns, known_ns, unknown_ns;
	uint64_t unknown;
};

_Static_assert(COST_SETS == 1u << 10, "as many bits of the hash as cost_find takes");

void costs_init(struct costs *costs)
{
	atomic_store_explicit(&costs->unknown_ns, COST_UNKNOWN_NS, memory_order_relaxed);
	atomic_store_explicit(&costs->scale, COST_SCALE, memory_order_relaxed);
}

static struct cost *set_of(struct costs *costs, uint64_t key)
{
	return costs->slots[key * UINT64_C(0x9e3779b97f4a7c15) >> 54];
}

/* An empty slot of the set, or else another key's. */
static struct cost *reserve_slot(struct costs *costs, struct cost *set)
{
	for (unsigned i = 0; i < COST_WAYS; i++)
		if (atomic_load_explicit(&set[i].key, memory_order_relaxed) == 0)
			return &set[i];
	return &set[costs->hand++ % COST_WAYS];
}

struct cost *cost_slot(struct costs *costs, uint64_t key)
{
	struct cost *slot = cost_find(costs, key);
	if (slot)
		return slot;
	slot = reserve_slot(costs, set_of(costs, key));
	atomic_store_explicit(&slot->key, key, memory_order_relaxed);
	atomic_store_explicit(&slot->ns, 0, memory_order_relaxed);
	atomic_store_explicit(&slot->launches, 0, memory_order_relaxed);
	return slot;
}

void cost_forget(struct costs *costs, uint64_t key)
{
	struct cost *slot = cost_find(costs, key);
	if (slot)
		atomic_store_explicit(&slot->key, 0, memory_order_relaxed);
}

void cost_remember(struct costs *costs, const struct cost_quantum *quantum)
{
	costs->quanta[quantum->quantum % ALIQUOT_QUANTA] = *quantum;
}

static const struct cost_quantum *recall(const struct costs *costs, uint64_t quantum)
{
	const struct cost_quantum *found = &costs->quanta[quantum % ALIQUOT_QUANTA];
	return found->quantum == quantum ? found : NULL;
}

/* False: not all of these quanta are remembered. */
static bool sum_quanta(const struct costs *costs, uint64_t first, uint64_t last, struct sum *sum)
{
	*sum = (struct sum){0};
	if (first == 0 || last < first || last - first >= ALIQUOT_QUANTA)
		return false;
	for (uint64_t i = first; i <= last; i++) {
		const struct cost_quantum *quantum = recall(costs, i);
		if (!quantum)
			return false;
		sum->expected_ns += (double)quantum->expected_ns;
		sum->known_ns += (double)quantum->known_ns;
		sum->unknown += quantum->unknown;
	}
	sum->unknown_ns = sum->expected_ns - sum->known_ns;
	return sum->expected_ns > 0;
}

static void move_towards(_Atomic uint32_t *ns, double to, double part)
{
	double from = atomic_load_explicit(ns, memory_order_relaxed);
	double moved = from + (to - from) * part;
	moved = moved < 1 ? 1 : moved > LONGEST_NS ? LONGEST_NS : moved;
	atomic_store_explicit(ns, (uint32_t)moved, memory_order_relaxed);
}

/* One launch of this key took `ns`: move its cost this part of the way, or all of it if it has
 * none. */
static void move_key(struct costs *costs, uint64_t key, double ns, double part)
{
	struct cost *cost = cost_slot(costs, key);
	move_towards(&cost->ns, ns, cost_of(cost) ? part : 1);
}

/* The time that the known launches leave belongs to the unknown ones, in proportion to their
 * expectation. */
static void learn_unknown(struct costs *costs, uint64_t first, uint64_t last, double ns,
                          const struct sum *sum)
{
	double left = ns > sum->known_ns ? ns - sum->known_ns : ns * sum->unknown_ns / sum->expected_ns;
	for (uint64_t i = first; i <= last; i++) {
		const struct cost_quantum *quantum = recall(costs, i);
		if (!quantum->key || !quantum->launches || quantum->unknown != quantum->launches)
			continue;
		double part = (double)quantum->expected_ns / sum->unknown_ns;
		move_key(costs, quantum->key, left * part / quantum->launches, part / KNOWN_PART);
	}
	move_towards(&costs->unknown_ns, left / (double)sum->unknown, 1.0 / UNKNOWN_PART);
}

static void learn_known(struct costs *costs, uint64_t first, uint64_t last, double ns,
                        const struct sum *sum)
{
	for (uint64_t i = first; i <= last; i++) {
		const struct cost_quantum *quantum = recall(costs, i);
		if (!quantum->key || !quantum->launches)
			continue;
		double part = (double)quantum->expected_ns / sum->expected_ns;
		move_key(costs, quantum->key, ns * part / quantum->launches, part / KNOWN_PART);
	}
}

/* From fading sums: a mean of ratios would give quanta with little time too much weight. */
static void learn_scale(struct costs *costs, double expected_ns, double ns)
{
	costs->expected_ns += expected_ns - costs->expected_ns / SCALE_PART;
	costs->took_ns += ns - costs->took_ns / SCALE_PART;
	double scale = COST_SCALE * costs->expected_ns / costs->took_ns;
	scale = scale > SCALE_MOST ? SCALE_MOST : scale < SCALE_LEAST ? SCALE_LEAST : scale;
	atomic_store_explicit(&costs->scale, (uint32_t)scale, memory_order_relaxed);
}

void cost_learn(struct costs *costs, uint64_t first, uint64_t last, uint64_t ns)
{
	struct sum sum;
	if (!sum_quanta(costs, first, last, &sum) || ns == 0)
		return;
	learn_scale(costs, sum.expected_ns, (double)ns);
	if (sum.unknown && sum.unknown_ns > 0)
		learn_unknown(costs, first, last, (double)ns, &sum);
	else
		learn_known(costs, first, last, (double)ns, &sum);
}
