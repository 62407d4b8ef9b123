/* What a driver's handle stands for: a map from 64-bit keys to records, one lock, no driver calls.
 *
 * A record is taken out before the driver frees its handle and put back if the driver refuses: the
 * driver may give the same handle to another thread the moment it is free. */
#ifndef ALIQUOT_TABLE_H
#define ALIQUOT_TABLE_H

#include "aliquot/lock.h"

#include <stdbool.h>
#include <stdint.h>

enum record_kind {
	RECORD_PLAIN = 1, /* its bytes are charged to its slice */
	RECORD_SMALL,     /* its page is charged, once for all that lie in it: page.h */
	RECORD_FILLING,   /* its bytes fill pages that are charged: page.h */
	RECORD_MANAGED,   /* as plain, and counted as managed */
	RECORD_POOLED,    /* its pool is charged, not itself */
};

struct record {
	uint64_t key;   /* 0: an empty place */
	uint64_t bytes; /* what is charged, or the size of a mapping */
	void *of;       /* its context, its pool, or its physical handle */
	uint32_t slice;
	uint16_t kind;
	uint16_t exported; /* physical memory: another may hold it too */
	uint32_t handles;  /* physical memory: handles given out and not released */
	uint32_t mappings; /* physical memory: places where it is mapped */
};

struct table {
	struct aliquot_lock lock;
	struct record *places;
	uint64_t capacity, used; /* capacity is a power of two or zero */
};

/* False: no memory for it. A record of the same key is replaced and handed out in *replaced (its key is
 * 0 if there was none): what it stood for is gone, and its freeing went past us. */
bool table_put(struct table *table, const struct record *record, struct record *replaced);

/* Remove the record of `key` and hand it out; false: there is none. */
bool table_take(struct table *table, uint64_t key, struct record *out);

bool table_get(struct table *table, uint64_t key, struct record *out);

/* Change a record in place under the lock; false: there is none. Removed where `change` says true. */
bool table_change(struct table *table, uint64_t key, bool (*change)(struct record *, void *),
                  void *argument);

/* Move every record that belongs to `of` into another table. */
void table_move_of(struct table *from, const void *of, struct table *to);

/* Call `each` with every record and leave the table empty, with no memory of its own. */
void table_empty(struct table *table, void (*each)(const struct record *, void *), void *argument);

#endif
