/* Open addressing with backward-shift deletion: no tombstones, so it never degrades. */
#include "table.h"

#include <stdlib.h>

static uint64_t place_of(const struct table *table, uint64_t key)
{
	return (key * UINT64_C(0x9e3779b97f4a7c15)) >> 20 & (table->capacity - 1);
}

/* The place of `key`, or the empty place where it would go. */
static uint64_t seek(const struct table *table, uint64_t key)
{
	uint64_t i = place_of(table, key);
	while (table->places[i].key != 0 && table->places[i].key != key)
		i = (i + 1) & (table->capacity - 1);
	return i;
}

static bool grow(struct table *table)
{
	struct table larger = {.capacity = table->capacity ? table->capacity * 2 : 256};
	larger.places = calloc(larger.capacity, sizeof(*larger.places));
	if (!larger.places)
		return false;
	for (uint64_t i = 0; i < table->capacity; i++)
		if (table->places[i].key)
			larger.places[seek(&larger, table->places[i].key)] = table->places[i];
	free(table->places);
	table->places = larger.places;
	table->capacity = larger.capacity;
	return true;
}

static void remove_at(struct table *table, uint64_t hole)
{
	uint64_t mask = table->capacity - 1, i = hole;
	for (;;) {
		i = (i + 1) & mask;
		if (table->places[i].key == 0)
			break;
		uint64_t home = place_of(table, table->places[i].key);
		if (((i - home) & mask) >= ((i - hole) & mask)) {
			table->places[hole] = table->places[i];
			hole = i;
		}
	}
	table->places[hole].key = 0;
	table->used--;
}

static struct record *find(struct table *table, uint64_t key)
{
	if (table->used == 0 || key == 0)
		return NULL;
	struct record *record = &table->places[seek(table, key)];
	return record->key ? record : NULL;
}

static bool put(struct table *table, const struct record *record, struct record *replaced)
{
	if (table->used * 2 >= table->capacity && !grow(table))
		return false;
	struct record *place = &table->places[seek(table, record->key)];
	*replaced = *place;
	table->used += place->key == 0;
	*place = *record;
	return true;
}

bool table_put(struct table *table, const struct record *record, struct record *replaced)
{
	replaced->key = 0;
	aliquot_lock(&table->lock);
	bool room = put(table, record, replaced);
	aliquot_unlock(&table->lock);
	return room;
}

static bool copy_out(struct record *record, void *out)
{
	*(struct record *)out = *record;
	return false;
}

static bool move_out(struct record *record, void *out)
{
	*(struct record *)out = *record;
	return true;
}

bool table_take(struct table *table, uint64_t key, struct record *out)
{
	return table_change(table, key, move_out, out);
}

bool table_get(struct table *table, uint64_t key, struct record *out)
{
	return table_change(table, key, copy_out, out);
}

bool table_change(struct table *table, uint64_t key, bool (*change)(struct record *, void *),
                  void *argument)
{
	aliquot_lock(&table->lock);
	struct record *record = find(table, key);
	if (record && change(record, argument))
		remove_at(table, (uint64_t)(record - table->places));
	aliquot_unlock(&table->lock);
	return record != NULL;
}

void table_move_of(struct table *from, const void *of, struct table *to)
{
	struct record replaced;
	aliquot_lock(&from->lock);
	for (uint64_t i = 0; i < from->capacity; i++)
		/* Removing moves a later record here: look again. */
		while (from->places[i].key && from->places[i].of == of &&
		       put(to, &from->places[i], &replaced))
			remove_at(from, i);
	aliquot_unlock(&from->lock);
}

void table_empty(struct table *table, void (*each)(const struct record *, void *), void *argument)
{
	for (uint64_t i = 0; i < table->capacity; i++)
		if (table->places[i].key)
			each(&table->places[i], argument);
	free(table->places);
	*table = (struct table){0};
}
