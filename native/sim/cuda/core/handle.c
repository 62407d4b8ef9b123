/* The table of live handles: a hash set of addresses with their kinds, with open addressing. */
#include "cuda/core/sim.h"

#include <stdlib.h>

struct slot {
	const void *object;
	enum sim_kind kind;
};

static struct slot *slots;
static size_t capacity, used; /* `used` counts tombstones too */
static const char tombstone;

static size_t place(const void *object)
{
	return (size_t)(((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15ull >> 20) & (capacity - 1);
}

static struct slot *find(const void *object)
{
	if (!capacity)
		return NULL;
	for (size_t i = place(object);; i = (i + 1) & (capacity - 1)) {
		if (slots[i].object == object)
			return &slots[i];
		if (!slots[i].object)
			return NULL;
	}
}

static void insert(const void *object, enum sim_kind kind)
{
	size_t i = place(object);
	while (slots[i].object)
		i = (i + 1) & (capacity - 1);
	slots[i] = (struct slot){object, kind};
	used++;
}

static void grow(void)
{
	struct slot *old = slots;
	size_t count = capacity, live = 0;
	for (size_t i = 0; i < count; i++)
		live += old[i].object && old[i].object != &tombstone;
	capacity = 256;
	while (capacity < live * 4)
		capacity *= 2;
	slots = calloc(capacity, sizeof(*slots));
	if (!slots)
		abort();
	used = 0;
	for (size_t i = 0; i < count; i++)
		if (old[i].object && old[i].object != &tombstone)
			insert(old[i].object, old[i].kind);
	free(old);
}

void handle_add(const void *object, enum sim_kind kind)
{
	if (used * 2 >= capacity)
		grow();
	insert(object, kind);
}

void handle_remove(const void *object)
{
	struct slot *slot = find(object);
	if (slot)
		slot->object = &tombstone;
}

bool handle_is(const void *object, enum sim_kind kind)
{
	if (!object || object == &tombstone)
		return false;
	const struct slot *slot = find(object);
	return slot && slot->kind == kind;
}
