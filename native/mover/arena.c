#include "arena.h"

#include "identity.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADS 65536u
#define SHRINK_PART (UINT64_C(1) << 30)

static uint64_t units_of(uint64_t bytes)
{
	return bytes / ARENA_UNIT + (bytes % ARENA_UNIT != 0);
}

static uint32_t *chain_of(struct arena *arena, int32_t pid, uint64_t start_time, uint64_t piece)
{
	uint64_t hash = (piece >> 21) * 0x9e3779b97f4a7c15u;
	hash = (hash ^ (uint32_t)pid ^ start_time << 20) * 0x9e3779b97f4a7c15u;
	return &arena->heads[hash >> 48];
}

static uint32_t *chain_of_extent(struct arena *arena, const struct aliquot_extent *extent)
{
	return chain_of(arena, extent->pid, extent->start_time, extent->piece);
}

/* Extents have numbers from 1 on. */
static struct aliquot_extent *extent_at(struct arena *arena, uint32_t number)
{
	return &arena->page->extents[number - 1];
}

static struct grant_use *use_of(struct arena *arena, uint64_t grant)
{
	struct grant_use *use = arena->uses;
	while (use && use->grant != grant)
		use = use->next;
	if (use)
		return use;
	use = calloc(1, sizeof(*use));
	if (!use)
		return NULL;
	*use = (struct grant_use){.grant = grant, .next = arena->uses};
	arena->uses = use;
	return use;
}

static void drop_unused(struct arena *arena)
{
	for (struct grant_use **link = &arena->uses; *link;) {
		struct grant_use *use = *link;
		if (use->bytes) {
			link = &use->next;
			continue;
		}
		*link = use->next;
		free(use);
	}
}

static void take(struct arena *arena, struct grant_use *use, uint64_t offset, uint64_t bytes)
{
	uint64_t count = units_of(bytes);
	memset(arena->used + offset / ARENA_UNIT, 1, count);
	use->bytes += count * ARENA_UNIT;
}

static void give(struct arena *arena, uint64_t grant, uint64_t offset, uint64_t bytes)
{
	uint64_t first = offset / ARENA_UNIT, count = units_of(bytes);
	memset(arena->used + first, 0, count);
	if (first < arena->hint)
		arena->hint = first;
	struct grant_use *use = use_of(arena, grant);
	if (use)
		use->bytes -= count * ARENA_UNIT;
	drop_unused(arena);
}

static void count(struct arena *arena, int change, uint64_t bytes)
{
	struct aliquot_arena *page = arena->page;
	atomic_fetch_add(&page->extent_count, (uint32_t)change);
	atomic_fetch_add(&page->held_bytes, change > 0 ? bytes : -bytes);
}

/* Frees the extent's number and its space. */
static void retire(struct arena *arena, uint32_t number)
{
	struct aliquot_extent *extent = extent_at(arena, number);
	give(arena, extent->grant, extent->offset, extent->bytes);
	arena->next[number] = arena->free;
	arena->free = number;
}

/* From now on there is no such copy; its space is free when nobody reads it. */
static void drop(struct arena *arena, uint32_t number)
{
	struct aliquot_extent *extent = extent_at(arena, number);
	uint32_t *link = chain_of_extent(arena, extent);
	while (*link != number)
		link = &arena->next[*link];
	*link = arena->next[number];
	atomic_store(&extent->state, ALIQUOT_EXTENT_FREE);
	count(arena, -1, extent->bytes);
	if (arena->readers[number])
		arena->dropped[number] = 1;
	else
		retire(arena, number);
}

static uint32_t find(struct arena *arena, const struct owner *owner, uint64_t piece)
{
	uint32_t number = *chain_of(arena, owner->pid, owner->start_time, piece);
	for (; number; number = arena->next[number]) {
		const struct aliquot_extent *extent = extent_at(arena, number);
		if (extent->pid == owner->pid && extent->start_time == owner->start_time &&
		    extent->piece == piece)
			return number;
	}
	return 0;
}

/* Whether a copy that was found in the file can be one: it lies in the file, alone. */
static bool is_sound(const struct arena *arena, const struct aliquot_extent *extent)
{
	uint64_t end = atomic_load(&arena->memory->bytes);
	if (!extent->bytes || extent->offset % ARENA_UNIT || extent->offset >= end ||
	    extent->bytes > end - extent->offset)
		return false;
	const uint8_t *first = arena->used + extent->offset / ARENA_UNIT;
	return !memchr(first, 1, units_of(extent->bytes));
}

static bool recover(struct arena *arena)
{
	atomic_store(&arena->page->extent_count, 0);
	atomic_store(&arena->page->held_bytes, 0);
	for (uint32_t number = ALIQUOT_EXTENTS; number; number--) {
		struct aliquot_extent *extent = extent_at(arena, number);
		bool whole = atomic_load(&extent->state) == ALIQUOT_EXTENT_WHOLE;
		if (whole && is_sound(arena, extent)) {
			struct grant_use *use = use_of(arena, extent->grant);
			uint32_t *chain = chain_of_extent(arena, extent);
			if (!use)
				return false;
			take(arena, use, extent->offset, extent->bytes);
			arena->next[number] = *chain;
			*chain = number;
			count(arena, 1, extent->bytes);
			if (arena->end < number)
				arena->end = number;
			continue;
		}
		/* A page that was never written is not written now. */
		if (atomic_load(&extent->state) != ALIQUOT_EXTENT_FREE)
			atomic_store(&extent->state, ALIQUOT_EXTENT_FREE);
		arena->next[number] = arena->free;
		arena->free = number;
	}
	return true;
}

bool arena_open(struct arena *arena, struct host_memory *memory)
{
	*arena = (struct arena){.page = memory->own, .memory = memory};
	pthread_mutex_init(&arena->lock, NULL);
	arena->used = calloc(memory->reserved_bytes / ARENA_UNIT + 1, sizeof(*arena->used));
	arena->heads = calloc(HEADS, sizeof(*arena->heads));
	arena->next = calloc(ALIQUOT_EXTENTS + 1, sizeof(*arena->next));
	arena->readers = calloc(ALIQUOT_EXTENTS + 1, sizeof(*arena->readers));
	arena->dropped = calloc(ALIQUOT_EXTENTS + 1, sizeof(*arena->dropped));
	return arena->used && arena->heads && arena->next && arena->readers && arena->dropped &&
	       recover(arena);
}

/* The first free place of so many units; UINT64_MAX: there is none. */
static uint64_t find_place(struct arena *arena, uint64_t wanted)
{
	uint64_t end = atomic_load(&arena->memory->bytes) / ARENA_UNIT;
	while (arena->hint < end && arena->used[arena->hint])
		arena->hint++;
	uint64_t length = 0;
	for (uint64_t unit = arena->hint; unit < end; unit++) {
		length = arena->used[unit] ? 0 : length + 1;
		if (length == wanted)
			return unit + 1 - wanted;
	}
	return UINT64_MAX;
}

bool arena_reserve(struct arena *arena, const struct owner *owner, uint64_t bytes, uint64_t most,
                   struct arena_space *out, struct fault *fault)
{
	uint64_t wanted = units_of(bytes);
	for (;;) {
		uint64_t place = UINT64_MAX;
		pthread_mutex_lock(&arena->lock);
		struct grant_use *use = use_of(arena, owner->grant);
		uint64_t grown = atomic_load(&arena->memory->bytes);
		uint64_t used = use ? use->bytes : 0;
		bool allowed = use && used <= most && bytes <= most && wanted <= (most - used) / ARENA_UNIT;
		if (allowed)
			place = find_place(arena, wanted);
		if (place != UINT64_MAX) {
			*out = (struct arena_space){.offset = place * ARENA_UNIT,
			                            .bytes = bytes,
			                            .grant = owner->grant};
			take(arena, use, out->offset, bytes);
		} else {
			drop_unused(arena);
		}
		pthread_mutex_unlock(&arena->lock);
		if (place != UINT64_MAX)
			return true;
		if (!allowed)
			return fault_set(fault, ALIQUOT_MOVE_HOST_FULL,
			                 "the slice has %llu MiB on the host, and may have %llu MiB in all",
			                 fault_mib(used), fault_mib(most));
		if (!host_memory_obtain(arena->memory, grown, bytes, fault))
			return false;
	}
}

void arena_release(struct arena *arena, const struct arena_space *space)
{
	pthread_mutex_lock(&arena->lock);
	give(arena, space->grant, space->offset, space->bytes);
	pthread_mutex_unlock(&arena->lock);
}

bool arena_commit(struct arena *arena, const struct owner *owner, uint64_t piece,
                  const struct arena_space *space, struct fault *fault)
{
	pthread_mutex_lock(&arena->lock);
	uint32_t earlier = find(arena, owner, piece);
	if (earlier)
		drop(arena, earlier);
	uint32_t number = arena->free;
	if (!number) {
		pthread_mutex_unlock(&arena->lock);
		return fault_set(fault, ALIQUOT_MOVE_HOST_FULL, "the host has copies of %u pieces already",
		                 ALIQUOT_EXTENTS);
	}
	struct aliquot_extent *extent = extent_at(arena, number);
	arena->free = arena->next[number];
	if (arena->end < number)
		arena->end = number;
	extent->pid = owner->pid;
	extent->start_time = owner->start_time;
	extent->grant = owner->grant;
	extent->piece = piece;
	extent->bytes = space->bytes;
	extent->offset = space->offset;
	extent->checksum = space->checksum;
	extent->has_checksum = space->has_checksum;
	atomic_store(&extent->state, ALIQUOT_EXTENT_WHOLE);
	uint32_t *chain = chain_of_extent(arena, extent);
	arena->next[number] = *chain;
	*chain = number;
	arena->dropped[number] = 0;
	count(arena, 1, space->bytes);
	pthread_mutex_unlock(&arena->lock);
	return true;
}

bool arena_read(struct arena *arena, const struct owner *owner, uint64_t piece, uint64_t bytes,
                struct arena_space *out, struct fault *fault)
{
	pthread_mutex_lock(&arena->lock);
	uint32_t number = find(arena, owner, piece);
	const struct aliquot_extent *extent = number ? extent_at(arena, number) : NULL;
	uint64_t held = extent ? extent->bytes : 0;
	bool found = held == bytes && arena->readers[number] < UINT16_MAX;
	if (found) {
		arena->readers[number]++;
		*out = (struct arena_space){.offset = extent->offset,
		                            .bytes = bytes,
		                            .grant = extent->grant,
		                            .extent = number,
		                            .checksum = extent->checksum,
		                            .has_checksum = extent->has_checksum};
	}
	pthread_mutex_unlock(&arena->lock);
	if (found)
		return true;
	if (!held)
		return fault_set(fault, ALIQUOT_MOVE_UNKNOWN, "the host has no copy of piece %#llx",
		                 (unsigned long long)piece);
	return fault_set(fault, ALIQUOT_MOVE_UNKNOWN,
	                 "the copy of piece %#llx has %llu bytes, not %llu", (unsigned long long)piece,
	                 (unsigned long long)held, (unsigned long long)bytes);
}

void arena_unread(struct arena *arena, const struct arena_space *space)
{
	pthread_mutex_lock(&arena->lock);
	if (!--arena->readers[space->extent] && arena->dropped[space->extent])
		retire(arena, space->extent);
	pthread_mutex_unlock(&arena->lock);
}

void arena_forget(struct arena *arena, const struct owner *owner, uint64_t piece)
{
	pthread_mutex_lock(&arena->lock);
	uint32_t number = find(arena, owner, piece);
	if (number)
		drop(arena, number);
	pthread_mutex_unlock(&arena->lock);
}

void arena_forget_process(struct arena *arena, int32_t pid, uint64_t start_time)
{
	pthread_mutex_lock(&arena->lock);
	for (uint32_t number = 1; number <= arena->end; number++) {
		const struct aliquot_extent *extent = extent_at(arena, number);
		if (atomic_load(&extent->state) == ALIQUOT_EXTENT_WHOLE && extent->pid == pid &&
		    extent->start_time == start_time)
			drop(arena, number);
	}
	pthread_mutex_unlock(&arena->lock);
}

/* One that the kernel cannot tell about counts as alive. */
static bool is_dead(int32_t pid, uint64_t start_time)
{
	int pidfd = identity_reopen(pid, start_time);
	if (pidfd >= 0)
		close(pidfd);
	return pidfd == -ESRCH;
}

/* The owner of the first copy from that number on; false: there is none. */
static bool find_owner(struct arena *arena, uint32_t *number, int32_t *pid, uint64_t *start_time)
{
	bool found = false;
	pthread_mutex_lock(&arena->lock);
	for (; *number <= arena->end && !found; *number += 1) {
		const struct aliquot_extent *extent = extent_at(arena, *number);
		found = atomic_load(&extent->state) == ALIQUOT_EXTENT_WHOLE &&
		        (extent->pid != *pid || extent->start_time != *start_time);
		if (found) {
			*pid = extent->pid;
			*start_time = extent->start_time;
		}
	}
	pthread_mutex_unlock(&arena->lock);
	return found;
}

void arena_forget_dead(struct arena *arena)
{
	int32_t pid = 0;
	uint64_t start_time = 0;
	for (uint32_t number = 1; find_owner(arena, &number, &pid, &start_time);)
		if (is_dead(pid, start_time))
			arena_forget_process(arena, pid, start_time);
}

void arena_give_back(struct arena *arena, uint64_t bytes)
{
	uint64_t now = atomic_load(&arena->memory->bytes);
	arena_shrink(arena, now > bytes ? now - bytes : 0);
}

/* Shrinks by a part of it, so that others do not wait long for the lock. False: it has that size, or cannot
 * be smaller. */
static bool shrink_some(struct arena *arena, uint64_t to)
{
	pthread_mutex_lock(&arena->lock);
	uint64_t before = atomic_load(&arena->memory->bytes), end = before / ARENA_UNIT;
	while (end && !arena->used[end - 1])
		end--;
	if (before > SHRINK_PART && to < before - SHRINK_PART)
		to = before - SHRINK_PART;
	host_memory_shrink(arena->memory, end * ARENA_UNIT > to ? end * ARENA_UNIT : to);
	bool shrunk = atomic_load(&arena->memory->bytes) < before;
	pthread_mutex_unlock(&arena->lock);
	return shrunk;
}

void arena_shrink(struct arena *arena, uint64_t to)
{
	while (atomic_load(&arena->memory->bytes) > to && shrink_some(arena, to))
		sched_yield();
}

bool arena_is_empty(struct arena *arena)
{
	pthread_mutex_lock(&arena->lock);
	bool empty = !arena->uses;
	pthread_mutex_unlock(&arena->lock);
	return empty;
}
