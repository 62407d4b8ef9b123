#include "slab.h"

static uint32_t places_of(uint64_t bytes)
{
	return (uint32_t)((bytes + SLAB_STEP - 1) / SLAB_STEP);
}

static bool bit(const uint64_t *bits, uint32_t place)
{
	return bits[place / 64] >> (place % 64) & 1;
}

static void set_bits(uint64_t *bits, uint32_t from, uint32_t count, bool value)
{
	for (uint32_t place = from; place < from + count; place++)
		if (value)
			bits[place / 64] |= UINT64_C(1) << (place % 64);
		else
			bits[place / 64] &= ~(UINT64_C(1) << (place % 64));
}

/* The first run of `count` free places. */
static uint32_t find_run(const struct slab *slab, uint32_t count)
{
	uint32_t run = 0;
	for (uint32_t place = 0; place < SLAB_PLACES; place++) {
		if (place % 64 == 0 && slab->taken[place / 64] == UINT64_MAX) {
			run = 0;
			place += 63;
			continue;
		}
		run = bit(slab->taken, place) ? 0 : run + 1;
		if (run == count)
			return place + 1 - count;
	}
	return SLAB_NOWHERE;
}

uint32_t slab_take(struct slab *slab, uint64_t bytes, uint64_t shadow)
{
	uint32_t count = places_of(bytes);
	uint32_t start = slab->used + count <= SLAB_PLACES ? find_run(slab, count) : SLAB_NOWHERE;
	if (start == SLAB_NOWHERE)
		return start;
	set_bits(slab->taken, start, count, true);
	set_bits(slab->starts, start, 1, true);
	slab->used += count;
	slab->at[start] = (struct slab_allocation){.bytes = bytes, .shadow = shadow};
	return start;
}

uint32_t slab_find(const struct slab *slab, uint64_t byte)
{
	uint32_t place = (uint32_t)(byte / SLAB_STEP), word = place / 64;
	uint64_t before = slab->starts[word] & (UINT64_MAX >> (63 - place % 64));
	while (!before && word > 0)
		before = slab->starts[--word];
	if (!before)
		return SLAB_NOWHERE;
	uint32_t start = word * 64 + 63 - (uint32_t)__builtin_clzll(before);
	return byte - (uint64_t)start * SLAB_STEP < slab->at[start].bytes ? start : SLAB_NOWHERE;
}

void slab_give(struct slab *slab, uint32_t start)
{
	uint32_t count = places_of(slab->at[start].bytes);
	set_bits(slab->taken, start, count, false);
	set_bits(slab->starts, start, 1, false);
	slab->used -= count;
	slab->at[start] = (struct slab_allocation){0};
}
