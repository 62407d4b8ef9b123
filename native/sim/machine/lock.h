/* The lock of the file that all processes of the simulated machine share.
 *
 * Processes are in different pid namespaces (containers), where the same number names several: so
 * who holds the lock is named by a ticket of the file's own, and not by a thread's number as in
 * pthread's robust mutexes. Whether the holder lives is its record lock's word (machine.h).
 *
 * Guarantees: a holder that dies, at any instruction, holds it for LOCK_ROUND_NS more at most, and
 * whoever takes it from the dead is told so. Who has waited for LOCK_PATIENCE_NS has it next, however
 * fast others come back for it. A waiter that dies keeps nobody waiting for longer than a round.
 */
#ifndef SIM_LOCK_H
#define SIM_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#define LOCK_ROUND_NS 20000000l
#define LOCK_PATIENCE_NS 50000000ull

/* All zero: free. */
struct sim_lock {
	uint32_t holder; /* its ticket; the high bit: somebody waits */
	uint32_t heir;   /* the ticket of who has it next */
};

/* Takes the lock for the holder of a ticket, which is not 0 and has no high bit; `lives` says of
 * another whether it lives. True: its holder died, and what it guards may be half written. One thread
 * of a ticket at a time. */
bool lock_take(struct sim_lock *lock, uint32_t ticket,
               bool (*lives)(void *context, uint32_t ticket), void *context);
void lock_give(struct sim_lock *lock);

/* For any word that processes share. Waits while it is `seen`, for less than a second; false: the
 * time is over and nobody woke us. */
bool word_wait(uint32_t *word, uint32_t seen, long ns);
void word_wake(uint32_t *word, int count);

#endif
