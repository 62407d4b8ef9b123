/* A lock between processes. See lock.h. */
#include "lock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAITED 0x80000000u

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool futex_wait(uint32_t *word, uint32_t seen, long ns)
{
	struct timespec time = {.tv_nsec = ns};
	return !syscall(SYS_futex, word, FUTEX_WAIT, seen, &time, NULL, 0) || errno != ETIMEDOUT;
}

void futex_wake(uint32_t *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

static bool change(uint32_t *word, uint32_t from, uint32_t to)
{
	return __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Waits for the lock; true: we took it from a dead holder. */
static bool take_slowly(struct sim_lock *lock, uint32_t me,
                        bool (*lives)(void *context, uint32_t ticket), void *context)
{
	uint64_t since = now_ns();
	for (;;) {
		uint32_t seen = __atomic_load_n(&lock->holder, __ATOMIC_ACQUIRE), holder = seen & ~WAITED;
		if (holder == me)
			return false; /* the last holder handed it to us */
		if (!seen && change(&lock->holder, 0, me | WAITED))
			return false;
		if (!seen || (!(seen & WAITED) && !change(&lock->holder, seen, seen | WAITED)))
			continue;
		if (now_ns() - since >= LOCK_PATIENCE_NS)
			change(&lock->next, 0, me);
		if (futex_wait(&lock->holder, seen | WAITED, LOCK_ROUND_NS) || lives(context, holder))
			continue;
		if (change(&lock->holder, seen | WAITED, me | WAITED))
			return true;
	}
}

bool lock_acquire(struct sim_lock *lock, uint32_t me, bool (*lives)(void *context, uint32_t ticket),
                  void *context)
{
	if (change(&lock->holder, 0, me))
		return false;
	bool died = take_slowly(lock, me, lives, context);
	change(&lock->next, me, 0);
	return died;
}

void lock_release(struct sim_lock *lock)
{
	uint32_t next = __atomic_exchange_n(&lock->next, 0, __ATOMIC_ACQUIRE);
	uint32_t before = __atomic_exchange_n(&lock->holder, next ? next | WAITED : 0,
	                                      __ATOMIC_RELEASE);
	if (before & WAITED)
		futex_wake(&lock->holder, next ? INT_MAX : 1);
}
