/* Costs are learned, and stay within bounds, whatever quanta there are and whatever is told of
 * them. */
#include "cost.h"

#include "../check.h"

#include <stdlib.h>

static uint64_t seed = 7;

static uint64_t draw(uint64_t below)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (seed >> 33) % below;
}

static struct costs *fresh(void)
{
	struct costs *costs = calloc(1, sizeof(*costs));
	CHECK(costs);
	costs_init(costs);
	return costs;
}

static uint64_t expect(struct costs *costs, uint64_t key)
{
	uint32_t ns = cost_of(cost_find(costs, key));
	return ns ? ns : costs->unknown_ns;
}

/* A quantum of so many launches of each key, as the stand-in would write it down. */
static uint64_t fill(struct costs *costs, uint64_t quantum, const uint64_t *keys,
                     const uint64_t *true_ns, unsigned count, unsigned launches)
{
	struct cost_quantum kept = {.quantum = quantum, .key = count == 1 ? keys[0] : 0};
	uint64_t took = 0;
	for (unsigned i = 0; i < count; i++) {
		bool known = cost_of(cost_find(costs, keys[i])) != 0;
		kept.expected_ns += launches * expect(costs, keys[i]);
		kept.known_ns += known ? launches * expect(costs, keys[i]) : 0;
		kept.unknown += known ? 0 : launches;
		kept.launches += launches;
		took += launches * true_ns[i];
	}
	cost_remember(costs, &kept);
	return took;
}

static bool is_near(uint64_t value, uint64_t wanted)
{
	return value >= wanted - wanted / 10 && value <= wanted + wanted / 10;
}

static uint64_t key_of(unsigned number)
{
	return cost_key((void *)(uintptr_t)(0x1000 + 16 * number), 1);
}

static void a_key_measured_alone_is_known_at_once(void)
{
	struct costs *costs = fresh();
	uint64_t key = key_of(1), ns = 750000;
	CHECK(!cost_find(costs, key));
	cost_learn(costs, 1, 1, fill(costs, 1, &key, &ns, 1, 1));
	CHECK(is_near(expect(costs, key), ns));
	ns = 250000; /* it became faster: a quarter of the way each time */
	for (uint64_t q = 2; q < 20; q++)
		cost_learn(costs, q, q, fill(costs, q, &key, &ns, 1, 5));
	CHECK(is_near(expect(costs, key), ns));
	free(costs);
}

/* An unknown kernel between known ones, told of together with them: they keep what they have. */
static void what_the_known_ones_leave_is_the_unknown_ones(void)
{
	struct costs *costs = fresh();
	uint64_t known = key_of(1), unknown = key_of(2), known_ns = 20000, unknown_ns = 2000000;
	cost_learn(costs, 1, 1, fill(costs, 1, &known, &known_ns, 1, 1));
	uint64_t took = fill(costs, 2, &known, &known_ns, 1, 25);
	took += fill(costs, 3, &unknown, &unknown_ns, 1, 1);
	took += fill(costs, 4, &known, &known_ns, 1, 25);
	cost_learn(costs, 2, 4, took);
	CHECK(is_near(expect(costs, known), known_ns));
	CHECK(is_near(expect(costs, unknown), unknown_ns));
	free(costs);
}

/* Kernels that are only ever measured several at a time: their sums come out right. */
static void sums_come_out_right_where_parts_cannot_be_told(void)
{
	struct costs *costs = fresh();
	uint64_t keys[8], ns[8], quantum = 0, expected = 0, took = 0;
	for (unsigned i = 0; i < 8; i++) {
		keys[i] = key_of(i);
		ns[i] = 5000 + draw(100000);
	}
	for (unsigned round = 0; round < 40; round++) {
		uint64_t first = quantum + 1;
		took = expected = 0;
		for (unsigned i = 0; i < 8; i++)
			took += fill(costs, ++quantum, &keys[i], &ns[i], 1, 1);
		cost_learn(costs, first, quantum, took);
	}
	for (unsigned i = 0; i < 8; i++)
		expected += expect(costs, keys[i]);
	CHECK(is_near(expected, took));
	free(costs);
}

/* With nothing but mixed quanta the guess for an unknown launch follows what they take. */
static void the_guess_follows_mixed_quanta(void)
{
	struct costs *costs = fresh();
	uint64_t keys[3] = {key_of(1), key_of(2), key_of(3)}, ns[3] = {100000, 300000, 200000};
	for (uint64_t q = 1; q < 100; q++)
		cost_learn(costs, q, q, fill(costs, q, keys, ns, 3, 10));
	CHECK(is_near(costs->unknown_ns, 200000));
	CHECK(!cost_find(costs, keys[0]));
	free(costs);
}

/* Old measurements of a guess that has moved since do not push it beyond its aim. */
static void late_measurements_do_not_overshoot(void)
{
	struct costs *costs = fresh();
	uint64_t keys[2] = {key_of(1), key_of(2)}, ns[2] = {1000000, 1000000}, took[50];
	for (uint64_t q = 1; q <= 50; q++)
		took[q - 1] = fill(costs, q, keys, ns, 2, 3);
	for (uint64_t q = 1; q <= 50; q++) {
		cost_learn(costs, q, q, took[q - 1]);
		CHECK(costs->unknown_ns <= 1000000);
	}
	CHECK(is_near(costs->unknown_ns, 1000000));
	free(costs);
}

static void due_at_powers_of_two_and_every_4096th(void)
{
	unsigned count = 0;
	for (uint32_t number = 1; number <= 3 * 4096; number++)
		count += cost_is_due(number);
	CHECK(count == 13 + 2);
	CHECK(cost_is_due(1) && cost_is_due(4096) && cost_is_due(8192) && !cost_is_due(6));
	CHECK(cost_is_due(UINT32_MAX - 4095) && !cost_is_due(UINT32_MAX));
}

static void keys_tell_functions_and_sizes_apart(void)
{
	void *function = (void *)0x7f0012345670;
	CHECK(cost_key(function, 1) != cost_key(function, 2));
	CHECK(cost_key(function, 4) == cost_key(function, 7));
	CHECK(cost_key(function, 8) != cost_key(function, 7));
	CHECK(cost_key(function, 0) == cost_key(function, 1));
	CHECK(cost_key(function, 1) != cost_key((char *)function + 16, 1));
	CHECK(cost_key(function, UINT64_MAX) != 0);
}

/* More keys than there are places, and things told that cannot be: nothing leaves its bounds. */
static void nothing_leaves_its_bounds(void)
{
	struct costs *costs = fresh();
	uint64_t quantum = 0;
	for (unsigned round = 0; round < 300000; round++) {
		uint64_t key = key_of((unsigned)draw(20000)), took = draw(1000000) * draw(1000000);
		struct cost_quantum kept = {.quantum = ++quantum,
		                            .key = draw(4) ? key : 0,
		                            .expected_ns = draw(3) ? draw(1000000) : 0,
		                            .launches = (uint32_t)draw(5),
		                            .unknown = (uint32_t)draw(5)};
		kept.known_ns = draw(2) ? draw(kept.expected_ns + 1) : 0;
		cost_remember(costs, &kept);
		cost_learn(costs, draw(8) ? quantum - draw(10) : draw(UINT32_MAX), quantum, took);
		if (draw(50) == 0)
			cost_forget(costs, key);
		CHECK(costs->unknown_ns >= 1 && costs->unknown_ns <= 4000000000u);
		CHECK(cost_of(cost_find(costs, key)) <= 4000000000u);
	}
	free(costs);
}

int main(void)
{
	a_key_measured_alone_is_known_at_once();
	what_the_known_ones_leave_is_the_unknown_ones();
	sums_come_out_right_where_parts_cannot_be_told();
	the_guess_follows_mixed_quanta();
	late_measurements_do_not_overshoot();
	due_at_powers_of_two_and_every_4096th();
	keys_tell_functions_and_sizes_apart();
	nothing_leaves_its_bounds();
	return 0;
}
