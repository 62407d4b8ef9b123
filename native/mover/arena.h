/* The copies that are in the arena (aliquot/arena.h): whose they are, and where.
 *
 * Space for a copy is reserved here alone, and the copy becomes an extent when it is whole. So a killed
 * mover leaves no trace of a copy that it had begun.
 *
 * A copy that is being read is not overwritten, even if it is forgotten meanwhile.
 *
 * Any thread may call these functions.
 */
#ifndef MOVER_ARENA_H
#define MOVER_ARENA_H

#include "host_memory.h"

/* What the arena counts in; as large as a page of GPU memory. */
#define ARENA_UNIT (UINT64_C(2) << 20)

/* A process, as the arbiter names it, and its grant. */
struct owner {
	int32_t pid;
	uint64_t start_time;
	uint64_t grant;
};

/* What the copies of one grant take. */
struct grant_use {
	uint64_t grant, bytes;
	struct grant_use *next;
};

struct arena {
	struct aliquot_arena *page;
	struct host_memory *memory;
	pthread_mutex_t lock;
	uint8_t *used;   /* by unit */
	uint64_t hint;   /* no unit before it is free */
	uint32_t *heads; /* extents by owner and piece, as chains of numbers; 0 ends one */
	uint32_t *next;  /* of the chain, or of the list of free extents */
	uint32_t free;   /* the first of that list */
	uint32_t end;    /* one past the last extent that was ever used */
	uint16_t *readers;
	uint8_t *dropped; /* forgotten while it was read */
	struct grant_use *uses;
};

/* Space for a copy, or one that is being read. */
struct arena_space {
	uint64_t offset, bytes;
	uint64_t grant;
	uint32_t extent; /* of one that is being read: its number */
	uint64_t checksum;
	bool has_checksum;
};

/* Finds the copies that an earlier mover left. False: out of memory. */
bool arena_open(struct arena *arena, struct host_memory *memory);

/* Reserves space, if the grant then has at most `most` bytes here. */
bool arena_reserve(struct arena *arena, const struct owner *owner, uint64_t bytes, uint64_t most,
                   struct arena_space *out, struct fault *fault);
void arena_release(struct arena *arena, const struct arena_space *space);
/* The copy is whole. It replaces an earlier one of the same piece. */
bool arena_commit(struct arena *arena, const struct owner *owner, uint64_t piece,
                  const struct arena_space *space, struct fault *fault);

/* Finds a copy to read; arena_unread follows. */
bool arena_read(struct arena *arena, const struct owner *owner, uint64_t piece, uint64_t bytes,
                struct arena_space *out, struct fault *fault);
void arena_unread(struct arena *arena, const struct arena_space *space);

void arena_forget(struct arena *arena, const struct owner *owner, uint64_t piece);
void arena_forget_process(struct arena *arena, int32_t pid, uint64_t start_time);
/* Forgets the copies of dead processes. */
void arena_forget_dead(struct arena *arena);

/* Gives memory back to the host that no copy needs, down to that size. */
void arena_shrink(struct arena *arena, uint64_t to);
/* The same, but by so much, or as much as it can. */
void arena_give_back(struct arena *arena, uint64_t bytes);

/* Whether no copy is here, nor space reserved for one. */
bool arena_is_empty(struct arena *arena);

#endif
