/* What the arbiter shares with the processes that watch it, in memory of all three.
 *
 * Three processes: the arbiter; its parent, which starts it again when it dies or makes no progress; and
 * the guard (guard.h), which takes the parent's place if that dies. Each of the latter two is replaced
 * by the other, so only the death of all three at once ends the arbiter, and then the next command
 * starts one: all that it needs is in files (private_directory.h).
 */
#ifndef ARBITER_SUPERVISION_H
#define ARBITER_SUPERVISION_H

#include <stdatomic.h>
#include <stdint.h>

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
};

#endif
