/* A lock between the threads of one process; zero means free.
 *
 * Not pthread's, which is in different libraries in different versions of glibc, and because all-zero
 * memory (a page wiped at fork) must be a free lock. Hold it for nanoseconds, never across a call
 * into the driver. */
#ifndef ALIQUOT_LOCK_H
#define ALIQUOT_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

struct aliquot_lock {
	_Atomic unsigned state; /* 0 free, 1 locked, 2 locked and waited for */
};

static inline void aliquot_lock(struct aliquot_lock *lock)
{
	unsigned expected = 0;
	if (atomic_compare_exchange_strong_explicit(&lock->state, &expected, 1, memory_order_acquire,
	                                            memory_order_relaxed))
		return;
	while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0)
		syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline void aliquot_unlock(struct aliquot_lock *lock)
{
	if (atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2)
		syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
