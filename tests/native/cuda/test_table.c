/* The table against the plainest map there is, over a long random history. */
#include "table.h"

#include "../check.h"

#include <stdint.h>

enum { KEYS = 700, ROUNDS = 200000 };

static struct table table;
static uint64_t expected[KEYS + 1]; /* key -> bytes, 0: absent */
static uintptr_t owner[KEYS + 1];

static void sum_up(const struct record *record, void *sum)
{
	CHECK(expected[record->key / 512] == record->bytes);
	expected[record->key / 512] = 0;
	*(uint64_t *)sum += record->bytes;
}

static uint64_t total_of(uintptr_t of)
{
	uint64_t sum = 0;
	for (unsigned i = 1; i <= KEYS; i++)
		sum += owner[i] == of ? expected[i] : 0;
	return sum;
}

int main(void)
{
	uint64_t seed = 42;
	for (unsigned round = 0; round < ROUNDS; round++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
		uint64_t key = (seed >> 33) % KEYS + 1, kind = (seed >> 60) % 8;
		struct record record = {.key = key * 512,
		                        .bytes = (seed >> 40) + 1,
		                        .of = (void *)(uintptr_t)(key % 5 + 1)};
		if (kind < 4) {
			struct record replaced;
			CHECK(table_put(&table, &record, &replaced));
			CHECK(expected[key] ? replaced.bytes == expected[key] : replaced.key == 0);
			expected[key] = record.bytes;
			owner[key] = key % 5 + 1;
		} else if (kind < 7) {
			CHECK(table_take(&table, key * 512, &record) == (expected[key] != 0));
			CHECK(expected[key] == 0 || record.bytes == expected[key]);
			expected[key] = 0;
		} else if (seed >> 54 == 1008) {
			uint64_t sum = 0, wanted = total_of(3);
			struct table taken = {0};
			table_move_of(&table, (void *)3, &taken);
			table_empty(&taken, sum_up, &sum);
			CHECK(sum == wanted && total_of(3) == 0);
		}
		CHECK(table_get(&table, key * 512, &record) == (expected[key] != 0));
	}
	return 0;
}
