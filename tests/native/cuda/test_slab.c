/* A slab against the plainest model of one, over a long random history. */
#include "slab.h"

#include "../check.h"

#include <stdlib.h>

enum { ROUNDS = 100000, LARGEST = 2048 * SLAB_STEP };

static struct slab slab;
static uint64_t owner[SLAB_PLACES]; /* by place: the shadow of its allocation; 0: free */
static uint64_t asked[ROUNDS + 1];  /* bytes, by shadow */

static uint32_t places_of(uint64_t bytes)
{
	return (uint32_t)((bytes + SLAB_STEP - 1) / SLAB_STEP);
}

static bool has_room(uint32_t count)
{
	uint32_t run = 0;
	for (uint32_t place = 0; place < SLAB_PLACES; place++) {
		run = owner[place] ? 0 : run + 1;
		if (run == count)
			return true;
	}
	return false;
}

static void take(uint64_t shadow)
{
	uint64_t bytes = 1 + (uint64_t)random() % (random() % 4 ? 4 * SLAB_STEP : LARGEST);
	uint32_t count = places_of(bytes);
	bool expected = has_room(count);
	uint32_t start = slab_take(&slab, bytes, shadow);
	CHECK((start != SLAB_NOWHERE) == expected);
	if (!expected)
		return;
	asked[shadow] = bytes;
	for (uint32_t place = start; place < start + count; place++) {
		CHECK(owner[place] == 0);
		owner[place] = shadow;
	}
}

static bool starts_here(uint32_t place)
{
	return owner[place] && (place == 0 || owner[place - 1] != owner[place]);
}

static void give(void)
{
	uint32_t place = (uint32_t)random() % SLAB_PLACES;
	while (place < SLAB_PLACES && !starts_here(place))
		place++;
	if (place == SLAB_PLACES)
		return;
	uint64_t shadow = owner[place];
	slab_give(&slab, place);
	for (uint32_t i = place; i < SLAB_PLACES && owner[i] == shadow; i++)
		owner[i] = 0;
}

static void find(void)
{
	uint64_t byte = (uint64_t)random() % SLAB_BYTES;
	uint32_t place = (uint32_t)(byte / SLAB_STEP), start = place;
	while (owner[place] && start > 0 && owner[start - 1] == owner[place])
		start--;
	bool inside = owner[place] && byte - start * SLAB_STEP < asked[owner[place]];
	CHECK(slab_find(&slab, byte) == (inside ? start : SLAB_NOWHERE));
	if (inside)
		CHECK(slab.at[start].shadow == owner[place]);
}

int main(void)
{
	uint32_t used = 0;
	srandom(17);
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		if (random() % 5 < 2)
			take(round);
		else
			give();
		find();
	}
	for (uint32_t place = 0; place < SLAB_PLACES; place++)
		used += owner[place] != 0;
	CHECK(slab.used == used && used > 0);
	return 0;
}
