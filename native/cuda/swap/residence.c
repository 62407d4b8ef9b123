#define _GNU_SOURCE
#include "swap/residence.h"

#include "aliquot/credit.h"
#include "arbiter_call.h"
#include "cancel.h"
#include "gate/state.h"
#include "session.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHARDS 16u
/* How often a waiting call looks at the arbiter's word while memory is about to leave. */
#define LEAVING_MS 10
/* The same for a call that asks for memory, while memory is away. */
#define REFUSED_MS 50

enum state { OPEN, LEAVING, AWAY };

/* The calls of some threads: each in a line of the cache of its own. */
struct shard {
	_Alignas(64) _Atomic uint64_t entered;
	_Atomic uint64_t left;
};

struct barrier {
	_Atomic uint32_t state; /* enum state; calls sleep on it */
	_Atomic bool is_made;
	_Atomic int64_t until_ms; /* LEAVING holds calls until then */
	const _Atomic uint32_t *word, *refused;
	struct shard shards[SHARDS];
};

/* A fork wipes it. */
static void *_Atomic page;
_Atomic bool residence_is_used;

static struct barrier *barrier_here(void)
{
	struct barrier *barrier = atomic_load_explicit(&page, memory_order_acquire);
	return barrier && atomic_load_explicit(&barrier->is_made, memory_order_acquire) ? barrier
	                                                                                : NULL;
}

/* --- calls -------------------------------------------------------------------------------------- */

static struct shard *shard_of_thread(struct barrier *barrier)
{
	return &barrier->shards[gate_thread() * UINT64_C(0x9e3779b97f4a7c15) >> 60];
}

int64_t residence_now_ms(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static bool passes(const struct barrier *barrier, uint32_t state)
{
	return state == OPEN || (state == LEAVING && (!(atomic_load(barrier->word) & ALIQUOT_ON_HOST) ||
	                                              residence_now_ms() >= barrier->until_ms));
}

/* Wait until the state may be another, or that long; 0: without limit. Signals may end it early. */
static void wait_at(struct barrier *barrier, uint32_t state, long ms)
{
	struct timespec moment = {.tv_nsec = ms * 1000 * 1000};
	syscall(SYS_futex, &barrier->state, FUTEX_WAIT_PRIVATE, state, ms ? &moment : NULL, NULL, 0);
}

/* Whether the arbiter has calls refused that ask for memory. Its word for that is one of `word`, so it says nothing
 * about another move. */
static bool is_refused(const struct barrier *barrier)
{
	uint32_t word = atomic_load(barrier->word);
	return word & ALIQUOT_ON_HOST && atomic_load(barrier->refused) == word;
}

/* Tell the arbiter, once for each time that memory leaves: what it took because the program was idle it
 * brings back. A lost RING does no harm, since the arbiter also looks at the page. */
static void say_wanted(const struct barrier *barrier)
{
	uint32_t word;
	int before = errno;
	do { /* the thread may have taken a newer word (mover_thread.c: take_word) */
		word = atomic_load(barrier->word);
		if (word & ALIQUOT_ON_HOST && atomic_exchange(&session_work()->wanted, word) != word)
			arbiter_ring();
	} while (atomic_load(barrier->word) != word);
	errno = before;
}

struct residence_call residence_enter_slow(bool asks_for_memory)
{
	struct barrier *barrier = barrier_here();
	if (!barrier)
		return (struct residence_call){0};
	struct shard *shard = shard_of_thread(barrier);
	for (;;) {
		uint32_t state = atomic_load(&barrier->state);
		if (!passes(barrier, state)) {
			say_wanted(barrier);
			if (asks_for_memory && is_refused(barrier))
				return (struct residence_call){.is_refused = true};
			long again = asks_for_memory ? REFUSED_MS : 0;
			wait_at(barrier, state, state == LEAVING ? LEAVING_MS : again);
			continue;
		}
		struct residence_call call = {.is_inside = true, .cancel = cancel_disable()};
		atomic_fetch_add(&shard->entered, 1);
		if (passes(barrier, atomic_load(&barrier->state)))
			return call;
		residence_leave_slow(call);
	}
}

void residence_leave_slow(struct residence_call call)
{
	struct barrier *barrier = barrier_here();
	if (barrier) /* a child that was forked inside a call has none */
		atomic_fetch_add(&shard_of_thread(barrier)->left, 1);
	cancel_restore(call.cancel);
}

/* --- the thread that moves ---------------------------------------------------------------------- */

bool residence_make(const _Atomic uint32_t *word, const _Atomic uint32_t *refused)
{
	struct barrier *barrier = session_wiped_memory(&page, sizeof(*barrier));
	if (!barrier)
		return false;
	barrier->word = word;
	barrier->refused = refused;
	atomic_store(&barrier->state, OPEN);
	atomic_store_explicit(&barrier->is_made, true, memory_order_release);
	atomic_store(&residence_is_used, true);
	return true;
}

static void set_state(struct barrier *barrier, enum state state)
{
	if (atomic_exchange(&barrier->state, state) != (uint32_t)state)
		syscall(SYS_futex, &barrier->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void residence_open(void)
{
	set_state(barrier_here(), OPEN);
}

void residence_hold(int64_t until_ms)
{
	struct barrier *barrier = barrier_here();
	atomic_store(&barrier->until_ms, until_ms);
	set_state(barrier, LEAVING);
}

bool residence_is_empty(uint64_t *entered)
{
	struct barrier *barrier = barrier_here();
	uint64_t left = 0;
	*entered = 0;
	/* In this order: a call that is counted as left is also counted as entered. */
	for (unsigned i = 0; i < SHARDS; i++)
		left += atomic_load(&barrier->shards[i].left);
	for (unsigned i = 0; i < SHARDS; i++)
		*entered += atomic_load(&barrier->shards[i].entered);
	return left == *entered;
}

bool residence_close(uint64_t entered)
{
	struct barrier *barrier = barrier_here();
	uint64_t now;
	set_state(barrier, AWAY);
	bool is_empty = residence_is_empty(&now);
	if (is_empty && now == entered && atomic_load(barrier->word) & ALIQUOT_ON_HOST)
		return true;
	set_state(barrier, LEAVING);
	return false;
}
