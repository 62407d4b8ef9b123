/* Open addressing with backward-shift deletion: no tombstones, so a map never gets slower. */
#include "map.h"

#include <stdlib.h>
#include <string.h>

static void *entry_at(const struct map *map, uint64_t place, size_t size)
{
	return map->entries + place * size;
}

static uint64_t key_at(const struct map *map, uint64_t place, size_t size)
{
	return *(const uint64_t *)entry_at(map, place, size);
}

/* The place where a key would be if all others were elsewhere. */
static uint64_t home_of(const struct map *map, uint64_t key)
{
	return (key * UINT64_C(0x9e3779b97f4a7c15)) >> 20 & (map->capacity - 1);
}

/* The place of `key`, or the empty place where it would go. */
static uint64_t seek(const struct map *map, uint64_t key, size_t size)
{
	uint64_t place = home_of(map, key);
	for (uint64_t there; (there = key_at(map, place, size)) != 0 && there != key;)
		place = (place + 1) & (map->capacity - 1);
	return place;
}

static bool grow(struct map *map, size_t size)
{
	struct map larger = {.capacity = map->capacity ? map->capacity * 2 : 256};
	larger.entries = calloc(larger.capacity, size);
	if (!larger.entries)
		return false;
	for (uint64_t place = 0; place < map->capacity; place++) {
		uint64_t key = key_at(map, place, size);
		if (key)
			memcpy(entry_at(&larger, seek(&larger, key, size), size), entry_at(map, place, size),
			       size);
	}
	free(map->entries);
	map->entries = larger.entries;
	map->capacity = larger.capacity;
	return true;
}

void map_lock(struct map *map)
{
	aliquot_lock(&map->lock);
}

void map_unlock(struct map *map)
{
	aliquot_unlock(&map->lock);
}

void *map_find(const struct map *map, uint64_t key, size_t size)
{
	if (map->used == 0 || key == 0)
		return NULL;
	return map_at(map, seek(map, key, size), size);
}

void *map_at(const struct map *map, uint64_t place, size_t size)
{
	return key_at(map, place, size) ? entry_at(map, place, size) : NULL;
}

void map_remove(struct map *map, void *entry, size_t size)
{
	uint64_t mask = map->capacity - 1;
	uint64_t hole = (uint64_t)((unsigned char *)entry - map->entries) / size;
	for (uint64_t place = (hole + 1) & mask;; place = (place + 1) & mask) {
		uint64_t key = key_at(map, place, size);
		if (key == 0)
			break;
		if (((place - home_of(map, key)) & mask) >= ((place - hole) & mask)) {
			memcpy(entry_at(map, hole, size), entry_at(map, place, size), size);
			hole = place;
		}
	}
	*(uint64_t *)entry_at(map, hole, size) = 0;
	map->used--;
}

static bool put_locked(struct map *map, const void *entry, void *replaced, size_t size)
{
	if (map->used * 2 >= map->capacity && !grow(map, size))
		return false;
	void *place = entry_at(map, seek(map, *(const uint64_t *)entry, size), size);
	memcpy(replaced, place, size);
	map->used += *(const uint64_t *)place == 0;
	memcpy(place, entry, size);
	return true;
}

bool map_put(struct map *map, const void *entry, void *replaced, size_t size)
{
	*(uint64_t *)replaced = 0;
	map_lock(map);
	bool has_memory = put_locked(map, entry, replaced, size);
	map_unlock(map);
	return has_memory;
}

bool map_get(struct map *map, uint64_t key, void *out, size_t size)
{
	map_lock(map);
	void *entry = map_find(map, key, size);
	if (entry)
		memcpy(out, entry, size);
	map_unlock(map);
	return entry != NULL;
}

bool map_take(struct map *map, uint64_t key, void *out, size_t size)
{
	map_lock(map);
	void *entry = map_find(map, key, size);
	if (entry) {
		memcpy(out, entry, size);
		map_remove(map, entry, size);
	}
	map_unlock(map);
	return entry != NULL;
}

void map_clear(struct map *map)
{
	free(map->entries);
	*map = (struct map){0};
}
