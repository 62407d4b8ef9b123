/* What the arbiter shares with the processes that watch it, in memory of all three.
 *
 * Three processes: the arbiter; its parent, which starts it again when it dies or makes no progress; and
 * the guard (guard.h), which takes the parent's place if that dies. Each of the latter two is replaced
 * by the other, so only the death of all three at once ends the arbiter, and then the next command
 * starts one: all that it needs is in files (private_directory.h).
 */
#ifndef ARBITER_SUPERVISION_H
#define ARBITER_SUPERVISION_H

#include "aliquot/arena.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A mover, by its number. The arbiter assigns it to a GPU for good; the parent writes the rest. */
struct mover_slot {
	atomic_int assigned; /* written after uuid */
	uint8_t uuid[16];
	atomic_int pid; /* 0: none runs */
	_Atomic uint64_t start_time;
	atomic_uint starts;
	_Atomic uint64_t rests_until; /* none is started until then */
	atomic_uint rests_because;    /* enum mover_rest: why */
	atomic_uint hangs;            /* how often it was ended because it made no progress */
	atomic_uint silent_looks;     /* of the parent's, since it made progress */
};

enum mover_rest { MOVER_DIED, MOVER_HUNG, MOVER_NOT_STARTED };

struct supervision {
	atomic_int ready; /* 1 since an arbiter has listened */
	char error[512];  /* why this arbiter did not start */

	/* The processes; the start time tells the arbiter from a later process with its pid. */
	atomic_int arbiter_pid, guard_pid;
	_Atomic uint64_t arbiter_start_time;

	/* Progress. The parent counts `asked` up and writes to a descriptor; the arbiter's loop answers
	 * with the same number and wakes the credit thread, which counts its looks. */
	atomic_bool serving; /* this arbiter's loop runs */
	_Atomic uint64_t asked, answered, looks;

	struct mover_slot movers[ALIQUOT_MOVERS];
};

#endif
