/* Hash maps from a driver's handles to what we know about them: one lock each, no driver calls.
 *
 * MAP_OF(name, type) defines `struct name`, a map of `type`, and its functions name_put, name_take
 * and so on. The first field of `type` must be `uint64_t key`; 0 is no key. A map of all zeros is
 * empty.
 *
 * How to use one. Take an entry out before the driver frees its handle, and put it back if the
 * driver refuses: the driver may give the same handle to another thread as soon as it is free. */
#ifndef ALIQUOT_MAP_H
#define ALIQUOT_MAP_H

#include "aliquot/lock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map {
	struct aliquot_lock lock;
	unsigned char *entries;
	uint64_t capacity, used; /* capacity is a power of two, or zero */
};

/* Add a copy of *entry; false: there is no memory for it. An entry of the same key is replaced and
 * copied to *replaced, whose key is 0 if there was none: its handle was freed without our seeing
 * it. */
bool map_put(struct map *map, const void *entry, void *replaced, size_t size);

/* Copy the entry of `key` to *out, and with map_take also remove it; false: there is none. */
bool map_get(struct map *map, uint64_t key, void *out, size_t size);
bool map_take(struct map *map, uint64_t key, void *out, size_t size);

void map_lock(struct map *map);
void map_unlock(struct map *map);

/* The entry of `key` in the map itself; NULL: there is none. It stays valid until the map is
 * unlocked or an entry is put or removed. Precondition of this and what follows: the caller has the
 * lock, or no other thread knows the map. */
void *map_find(const struct map *map, uint64_t key, size_t size);
/* The entry at a place below `capacity`; NULL: the place is empty. */
void *map_at(const struct map *map, uint64_t place, size_t size);
/* Remove an entry of the map. Another entry may move to its place. */
void map_remove(struct map *map, void *entry, size_t size);
/* Remove all entries, and free the memory. */
void map_clear(struct map *map);

#define MAP_INLINE static inline __attribute__((unused))

#define MAP_OF(name, type)                                                                         \
	_Static_assert(offsetof(type, key) == 0 && sizeof(((type *)0)->key) == sizeof(uint64_t),       \
	               #type " must begin with its key");                                              \
	struct name {                                                                                  \
		struct map map;                                                                            \
	};                                                                                             \
	MAP_INLINE bool name##_put(struct name *map, const type *entry, type *replaced)                \
	{                                                                                              \
		return map_put(&map->map, entry, replaced, sizeof(type));                                  \
	}                                                                                              \
	MAP_INLINE bool name##_get(struct name *map, uint64_t key, type *out)                          \
	{                                                                                              \
		return map_get(&map->map, key, out, sizeof(type));                                         \
	}                                                                                              \
	MAP_INLINE bool name##_take(struct name *map, uint64_t key, type *out)                         \
	{                                                                                              \
		return map_take(&map->map, key, out, sizeof(type));                                        \
	}                                                                                              \
	MAP_INLINE void name##_lock(struct name *map)                                                  \
	{                                                                                              \
		map_lock(&map->map);                                                                       \
	}                                                                                              \
	MAP_INLINE void name##_unlock(struct name *map)                                                \
	{                                                                                              \
		map_unlock(&map->map);                                                                     \
	}                                                                                              \
	MAP_INLINE type *name##_find(const struct name *map, uint64_t key)                             \
	{                                                                                              \
		return map_find(&map->map, key, sizeof(type));                                             \
	}                                                                                              \
	MAP_INLINE type *name##_at(const struct name *map, uint64_t place)                             \
	{                                                                                              \
		return map_at(&map->map, place, sizeof(type));                                             \
	}                                                                                              \
	MAP_INLINE void name##_remove(struct name *map, type *entry)                                   \
	{                                                                                              \
		map_remove(&map->map, entry, sizeof(type));                                                \
	}                                                                                              \
	MAP_INLINE void name##_clear(struct name *map)                                                 \
	{                                                                                              \
		map_clear(&map->map);                                                                      \
	}

#endif
