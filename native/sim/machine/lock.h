/* The lock of the file that all processes of the simulated machine share.
 *
 * The processes are in different pid namespaces (containers), where the same pid can name several of
 * them. So the lock names its holder by a ticket that the file itself issues, not by a thread id as
 * pthread's robust mutexes do. The caller's `lives` says whether the process of a ticket lives.
 *
 * Guarantees: if the holder dies, at any instruction, another process gets the lock after at most
 * LOCK_ROUND_NS and learns that the holder died. A process that has waited for LOCK_PATIENCE_NS is the
 * next holder, however often others ask again. A waiter that dies delays others by at most a round.
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
	uint32_t next;   /* the ticket of the next holder; 0: the first that comes */
};

/* Takes the lock. The ticket is not 0 and has no high bit, and one thread at a time uses it. True: the
 * holder died, and what the lock guards may be half written. */
bool lock_acquire(struct sim_lock *lock, uint32_t ticket,
                  bool (*lives)(void *context, uint32_t ticket), void *context);
void lock_release(struct sim_lock *lock);

/* For any word in memory that processes share. Waits while it equals `seen`, for at most `ns`, which is
 * less than a second; false: the time is over and nobody called futex_wake. */
bool futex_wait(uint32_t *word, uint32_t seen, long ns);
void futex_wake(uint32_t *word, int count); /* wakes at most `count` waiters */

#endif
