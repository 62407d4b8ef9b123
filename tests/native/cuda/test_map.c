/* The map against the plainest map there is, over a long random history. */
#include "map.h"

#include "../check.h"

enum { KEYS = 700, ROUNDS = 200000, OWNERS = 5 };

struct thing {
	uint64_t key;
	uint64_t bytes;
	unsigned owner;
};

MAP_OF(thing_map, struct thing)

static struct thing_map map;
static uint64_t expected[KEYS + 1]; /* bytes by key; 0: absent */

static unsigned owner_of(uint64_t key)
{
	return (unsigned)(key % OWNERS);
}

static uint64_t expected_sum_of(unsigned owner)
{
	uint64_t sum = 0;
	for (unsigned key = 1; key <= KEYS; key++)
		sum += owner_of(key) == owner ? expected[key] : 0;
	return sum;
}

/* Remove all things of an owner while walking over the map; returns the sum of their bytes. */
static uint64_t remove_all_of(unsigned owner)
{
	uint64_t sum = 0;
	thing_map_lock(&map);
	for (uint64_t place = 0; place < map.map.capacity;) {
		struct thing *thing = thing_map_at(&map, place);
		if (!thing || thing->owner != owner) {
			place++;
			continue;
		}
		CHECK(expected[thing->key / 512] == thing->bytes);
		expected[thing->key / 512] = 0;
		sum += thing->bytes;
		thing_map_remove(&map, thing);
	}
	thing_map_unlock(&map);
	return sum;
}

static void put(uint64_t key, uint64_t bytes)
{
	struct thing thing = {.key = key * 512, .bytes = bytes, .owner = owner_of(key)}, replaced;
	CHECK(thing_map_put(&map, &thing, &replaced));
	CHECK(expected[key] ? replaced.bytes == expected[key] : replaced.key == 0);
	expected[key] = bytes;
}

static void take(uint64_t key)
{
	struct thing thing;
	CHECK(thing_map_take(&map, key * 512, &thing) == (expected[key] != 0));
	CHECK(expected[key] == 0 || thing.bytes == expected[key]);
	expected[key] = 0;
}

static void change_in_place(uint64_t key)
{
	thing_map_lock(&map);
	struct thing *thing = thing_map_find(&map, key * 512);
	CHECK((thing != NULL) == (expected[key] != 0));
	if (thing)
		expected[key] = ++thing->bytes;
	thing_map_unlock(&map);
}

int main(void)
{
	uint64_t seed = 42, count = 0;
	struct thing thing;
	CHECK(!thing_map_get(&map, 512, &thing) && !thing_map_find(&map, 0));
	for (unsigned round = 0; round < ROUNDS; round++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
		uint64_t key = (seed >> 33) % KEYS + 1, kind = (seed >> 60) % 8;
		if (kind < 4) {
			put(key, (seed >> 40) + 1);
		} else if (kind < 6) {
			take(key);
		} else if (kind < 7) {
			change_in_place(key);
		} else if (seed >> 54 == 1008) {
			uint64_t wanted = expected_sum_of(3);
			CHECK(remove_all_of(3) == wanted);
		}
		CHECK(thing_map_get(&map, key * 512, &thing) == (expected[key] != 0));
		CHECK(expected[key] == 0 || thing.bytes == expected[key]);
	}
	for (uint64_t place = 0; place < map.map.capacity; place++)
		count += thing_map_at(&map, place) != NULL;
	CHECK(count == map.map.used);
	thing_map_clear(&map);
	CHECK(!thing_map_get(&map, 512, &thing) && map.map.capacity == 0);
	return 0;
}
