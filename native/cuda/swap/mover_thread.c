/* The thread that moves this process's memory when the arbiter says so (aliquot/move.h: the model).
 *
 * It sleeps on the arbiter's word. For each new value it makes the memory be where the word says, and then
 * writes the word to the work page (credit.h: residence). It may be that only a part shall leave (layout.h:
 * leave_parts): calls wait then as if all had left. If memory cannot leave, it comes back, and the program
 * continues; `move_failed` has the reason. If memory cannot come back, it tries again for ever.
 *
 * The word may change at any time: then the thread stops what it does and goes on with the new value.
 *
 * At exit() no move begins that would use the driver while it is torn down, and one that has begun is waited
 * for, EXIT_MS at most. */
#define _GNU_SOURCE
#include "aliquot/credit.h"
#include "forward.h"
#include "gate/base.h"
#include "gate/gate.h"
#include "session.h"
#include "swap/carry.h"
#include "swap/residence.h"
#include "swap/swappable.h"
#include "swap/thread.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS (200 * 1000)         /* while calls that are inside end */
#define QUIET_MS 5000                /* within which the program must get quiet */
#define AGAIN_NS (100 * 1000 * 1000) /* between two attempts to come back */
#define EXIT_MS 2000
#define COUNT_NS (250 * 1000 * 1000) /* between two counts of calls */

/* What exit() and the thread know of each other; a fork wipes it. */
struct life {
	_Atomic bool is_moving, is_ending;
};

static void *_Atomic life_page;

/* For the thread alone. */
static uint32_t word;  /* the value of the arbiter's word that it deals with */
static bool is_closed; /* the barrier is AWAY */

static void pause_ns(long ns)
{
	struct timespec moment = {.tv_nsec = ns};
	nanosleep(&moment, NULL);
}

static const _Atomic uint32_t *asked(void)
{
	return &session_limits()->slices[0].residence;
}

/* Whether the arbiter's word is still the one that the thread deals with. */
static bool goes_on(void)
{
	return atomic_load(asked()) == word;
}

/* Tell how it went; a failure of 0: it did not fail. */
static void show(int failure)
{
	struct aliquot_work_slice *work = session_work();
	atomic_store(&work->away_bytes, carry_away_bytes());
	atomic_store(&work->move_failed, failure > 0 ? (uint32_t)failure : 0);
}

static void show_dealt_with(int failure)
{
	show(failure);
	atomic_store(&session_work()->residence, word);
}

static bool is_unswappable(void)
{
	return session_ties() & ALIQUOT_TIE_MANAGED;
}

/* Hold the program's calls until none is inside and the GPU has nothing to do. A program that captures
 * continues until it does not. If that fails, calls pass. */
static int close_barrier(void)
{
	uint64_t entered;
	int64_t until = 0;
	for (; goes_on(); pause_ns(LOOK_NS)) {
		if (gates_have_captures()) {
			residence_open();
			until = 0;
			continue;
		}
		int64_t now = residence_now_ms();
		until = until ? until : now + QUIET_MS;
		if (now >= until)
			break;
		residence_hold(until);
		if (!residence_is_empty(&entered) || gates_have_captures())
			continue;
		atomic_store(&session_work()->draining, word);
		gates_drain();
		atomic_store(&session_work()->draining, 0);
		is_closed = residence_close(entered);
		if (is_closed)
			return CARRY_DONE;
	}
	residence_open();
	return goes_on() ? ALIQUOT_MOVE_BUSY : CARRY_CALLED_OFF;
}

/* Bring all memory back and let calls pass. False: the word has changed before. */
static bool come_back(void)
{
	int failure = CARRY_DONE;
	while (is_closed && goes_on()) {
		gates_borrow_context();
		if ((failure = carry_in(goes_on)) == CARRY_DONE)
			break;
		show(failure);
		if (goes_on())
			pause_ns(AGAIN_NS);
	}
	if (is_closed && failure == CARRY_DONE && carry_away_bytes() == 0) {
		gates_return_context();
		residence_open();
		is_closed = false;
		show(CARRY_DONE);
	}
	return !is_closed;
}

/* Take the memory that shall leave to the host. Returns why that failed. */
static int leave(void)
{
	if (!is_closed) {
		carry_forget();
		if (is_unswappable())
			return ALIQUOT_MOVE_UNSWAPPABLE;
		int failure = close_barrier();
		if (failure != CARRY_DONE)
			return failure;
		if (!carry_list())
			return ALIQUOT_MOVE_DRIVER;
	}
	gates_borrow_context();
	carry_choose(atomic_load(&session_limits()->slices[0].leave_parts));
	return is_unswappable() ? ALIQUOT_MOVE_UNSWAPPABLE : carry_out(goes_on);
}

/* Make the memory be where the word says. */
static void deal_with_word(void)
{
	int failure = CARRY_DONE;
	if (word & ALIQUOT_ON_HOST)
		failure = leave();
	bool is_done = word & ALIQUOT_ON_HOST && failure == CARRY_DONE;
	if (goes_on() && (is_done || come_back()))
		show_dealt_with(failure);
	if (!is_closed)
		carry_forget();
}

/* If the arbiter parks the program when it is idle, it is told of calls now and then. */
static void wait_for_word(void)
{
	struct timespec moment = {.tv_nsec = COUNT_NS};
	bool counts = atomic_load(&session_limits()->slices[0].counts_calls);
	uint64_t calls;
	while (goes_on()) {
		residence_is_empty(&calls);
		atomic_store(&session_work()->calls, calls + 1);
		syscall(SYS_futex, asked(), FUTEX_WAIT, word, counts ? &moment : NULL, NULL, 0);
	}
}

/* The newest word. Calls that wait at the one before wait at this one if the memory stays away: more of it
 * shall leave. */
static void take_word(void)
{
	uint32_t before = word;
	word = atomic_load(asked());
	if (before & word & ALIQUOT_ON_HOST)
		atomic_compare_exchange_strong(&session_work()->wanted, &before, word);
}

static void *move_memory(void *memory)
{
	struct life *life = memory;
	gate_relax_capture_mode();
	for (;; wait_for_word()) {
		take_word();
		atomic_store(&life->is_moving, true);
		if (!atomic_load(&life->is_ending) || !(word & ALIQUOT_ON_HOST))
			deal_with_word();
		atomic_store(&life->is_moving, false);
	}
	return NULL;
}

static void end(void)
{
	struct life *life = atomic_load(&life_page);
	atomic_store(&life->is_ending, true);
	for (unsigned i = 0; i < EXIT_MS && atomic_load(&life->is_moving); i++)
		pause_ns(1000 * 1000);
}

/* What pthread_atfork is in glibc. Weak, because musl has none: there the library only loads, to say that
 * the driver needs glibc. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
                             void *library);
#pragma weak __register_atfork

/* --- its start ---------------------------------------------------------------------------------- */

/* A child has no pieces, and no thread that moves them until it starts one. */
static void forked(void)
{
	word = 0;
	is_closed = false;
	carry_forked();
}

void residence_start(void)
{
	if (!swappable_is_on())
		return;
	struct life *life = session_wiped_memory(&life_page, sizeof(*life));
	static _Atomic bool handles_forks;
	if (!life || !residence_make(asked(), &session_limits()->slices[0].refused))
		return;
	if (!atomic_exchange(&handles_forks, true))
		__register_atfork(NULL, NULL, forked, NULL);
	if (!thread_start(move_memory, life))
		forward_say("no thread can be started: this program's memory cannot leave the GPU");
	else
		atexit(end);
}
