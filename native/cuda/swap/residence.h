/* Whether the program's memory is on the GPU, and where calls wait while it is not.
 *
 * Calls that use device memory, ask about it, or make the driver allocate, are marked `resident` in hooks.txt:
 * residence_enter before all else, residence_leave after. While memory leaves, is away or returns they wait here, asleep. Calls that
 * ask how far the GPU is or wait for it (cuStreamQuery, cuEventQuery, cuStreamSynchronize) never wait here.
 * Calls that ask for memory (`memory` in hooks.txt) are refused while the arbiter says so; all others wait on, since
 * programs often do not look whether a launch or a copy was done.
 *
 * The barrier has three states, and only the thread that moves the memory (mover_thread.c) changes them:
 *
 *     OPEN      calls pass
 *     LEAVING   calls pass if the arbiter's word (layout.h: residence) says GPU, or a time is over. So a move
 *               that the arbiter calls off, or for which the program does not get quiet, lets all calls
 *               pass, though the thread may hang where it waits for the GPU
 *     AWAY      calls wait
 *
 * Guarantee: from a successful residence_close until residence_open no marked call is inside, and none was
 * since the number that residence_is_empty gave. A call is counted before it looks at the state; the thread
 * writes the state before it looks at the counts; both in sequentially consistent order.
 *
 * A thread that is inside cannot be cancelled: it would stay counted. A forked child has no barrier.
 */
#ifndef ALIQUOT_RESIDENCE_H
#define ALIQUOT_RESIDENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What residence_enter did, for residence_leave. */
struct residence_call {
	bool is_inside;
	bool
		is_refused; /* a call that asks for memory: it is out of memory, and residence_leave does nothing */
	int cancel; /* whether the thread could be cancelled before (cancel.h) */
};

/* --- for the hooks ----------------------------------------------------------------------------- */

extern _Atomic bool residence_is_used;
struct residence_call residence_enter_slow(bool asks_for_memory);
void residence_leave_slow(struct residence_call call);

/* Whether calls may have to wait: there is a barrier. */
static inline bool residence_matters(void)
{
	return __builtin_expect(atomic_load_explicit(&residence_is_used, memory_order_relaxed), 0);
}

/* Wait until the memory is on the GPU, and be counted as inside. residence_leave must follow. */
static inline struct residence_call residence_enter(void)
{
	return residence_matters() ? residence_enter_slow(false) : (struct residence_call){0};
}

/* The same for a call that asks for memory: the arbiter may have it refused (layout.h: refused). */
static inline struct residence_call residence_enter_to_allocate(void)
{
	return residence_matters() ? residence_enter_slow(true) : (struct residence_call){0};
}

static inline void residence_leave(struct residence_call call)
{
	if (__builtin_expect(call.is_inside, 0))
		residence_leave_slow(call);
}

/* Start the thread that moves this process's memory, if the grant has swap=1. Precondition: the session is
 * open. */
void residence_start(void);

/* --- for that thread --------------------------------------------------------------------------- */

/* Make the barrier; both words are the arbiter's. False: there is no memory for it. */
bool residence_make(const _Atomic uint32_t *word, const _Atomic uint32_t *refused);

/* To OPEN; wakes all that wait. */
void residence_open(void);
/* To LEAVING, until that time of residence_now_ms. */
void residence_hold(int64_t until_ms);
int64_t residence_now_ms(void);
/* Whether no call is inside. *entered is the number of calls so far. */
bool residence_is_empty(uint64_t *entered);
/* To AWAY, if no call has entered since residence_is_empty gave this number and the word says HOST; false:
 * the state is LEAVING again. */
bool residence_close(uint64_t entered);

#endif
