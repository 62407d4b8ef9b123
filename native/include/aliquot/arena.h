/* The arena: the host's memory for what has left a GPU, and the orders of the arbiter to its movers.
 *
 * Each GPU has a data file, which holds the bytes, and an arena here, which says whose they are. All
 * arenas of a machine lie in one file, by number. Both files are in memory, and the arbiter's parent,
 * its guard and every mover hold them: a process that is killed takes nothing with it.
 *
 * A copy of a piece is an extent: consecutive bytes of the data file. Only the mover of that GPU writes
 * extents. All other fields of an extent are written before its state becomes WHOLE and none is changed
 * while it is, so a mover that is killed at any instruction leaves a whole copy or none. The bytes of
 * the data file that no extent has are free.
 *
 * The arbiter and its movers speak by a socket pair for each GPU, whose ends the parent holds too: an
 * order that a killed mover has not read is read by the next one. There are no answers.
 */
#ifndef ALIQUOT_ARENA_H
#define ALIQUOT_ARENA_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#define ALIQUOT_ARENA_MAGIC 0x314152414c51494cull
#define ALIQUOT_ARENA_VERSION 1u

/* GPUs of a machine that can have a mover. */
#define ALIQUOT_MOVERS 16u

#define ALIQUOT_EXTENTS 131072u /* of one GPU, at most */

enum aliquot_extent_state {
	ALIQUOT_EXTENT_FREE = 0,
	ALIQUOT_EXTENT_WHOLE = 1,
};

struct aliquot_extent {
	_Atomic uint32_t state; /* enum aliquot_extent_state */
	int32_t pid;            /* the process that it is of, in the arbiter's pid namespace */
	uint64_t start_time;    /* /proc/PID/stat's field 22 */
	uint64_t grant;         /* a number of that process's grant */
	uint64_t piece;         /* its address in the program */
	uint64_t bytes;
	uint64_t offset;   /* in the data file */
	uint64_t checksum; /* of the bytes */
	uint64_t has_checksum;
};

struct aliquot_arena {
	uint64_t magic;
	uint32_t version;
	uint32_t size;                 /* sizeof(struct aliquot_arena) */
	_Atomic uint64_t wanted_bytes; /* by the arbiter: grow to this size ahead of need */
	/* By the mover; the next mover counts them anew. */
	_Atomic uint64_t grown_bytes;      /* of the data file, which take memory of the host */
	_Atomic uint64_t registered_bytes; /* of these, ready for copies at full speed */
	_Atomic uint64_t held_bytes;       /* in extents */
	_Atomic uint64_t out_bytes;        /* copied to the host, in all */
	_Atomic uint64_t in_bytes;         /* copied back, in all */
	_Atomic uint32_t extent_count;
	_Atomic uint32_t connection_count;
	_Atomic uint64_t beats;         /* counts up while the mover makes progress */
	_Atomic uint64_t lacking_bytes; /* that programs wait for: other movers give some back */
	/* Only in the first arena, by the arbiter: granted to programs beside their GPUs' memory (layout.h:
	 * ALIQUOT_HOST_SLICE). The movers have so much less. */
	_Atomic uint64_t spill_bytes;
	_Atomic uint32_t
		beside_latency; /* by the arbiter: 1: a slice of priority latency is on the GPU */
	uint8_t reserved[3996];
	struct aliquot_extent extents[ALIQUOT_EXTENTS];
};

_Static_assert(sizeof(struct aliquot_extent) == 64, "part of the contract");
_Static_assert(sizeof(struct aliquot_arena) % 4096 == 0, "part of the contract");

/* The descriptors that a mover starts with. */
enum { ALIQUOT_MOVER_ARENAS = 3, ALIQUOT_MOVER_DATA = 4, ALIQUOT_MOVER_ORDERS = 5 };

/* What a mover exits with when one of its threads hangs. */
#define ALIQUOT_MOVER_HUNG 3

/* After how many seconds without progress a mover hangs: 20, or what the environment says, for tests that
 * have less time. Every step of a copy is progress, so it is long on slow hosts too. */
static inline unsigned aliquot_mover_patience(void)
{
	const char *seconds = getenv("ALIQUOT_MOVER_PATIENCE");
	unsigned long found = seconds ? strtoul(seconds, NULL, 10) : 0;
	return found && found < 1000 ? (unsigned)found : 20;
}

#define ALIQUOT_ORDER_MAGIC 0x4f4d4c41u /* "ALMO" */

enum aliquot_order_kind {
	/* With a connection (move.h) to that process, of which the grant may have `bytes` in the arena. */
	ALIQUOT_ORDER_SERVE = 1,
	ALIQUOT_ORDER_FORGET = 2, /* free all copies of that process, whose program has ended */
	ALIQUOT_ORDER_LOOK = 3,   /* wanted_bytes has changed */
};

struct aliquot_order {
	uint32_t magic;
	uint16_t version; /* ALIQUOT_ARENA_VERSION */
	uint16_t kind;    /* enum aliquot_order_kind */
	int32_t pid;
	uint32_t reserved;
	uint64_t start_time;
	uint64_t grant;
	uint64_t bytes;
};

#endif
