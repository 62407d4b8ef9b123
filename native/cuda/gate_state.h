/* What is known of gates, streams and contexts; gate.h has the model.
 *
 * All of it lies in memory that a fork wipes. A launch reads it with no lock; it is written
 *   - by whoever has taken the gate (gate_take), for the gate and its streams,
 *   - under `lock`, which is held for nanoseconds and never across a call into the driver, where
 *     places of streams and contexts change hands.
 *
 * A stream or a context that the driver is about to end must not be in anybody's hands: who has a gate
 * says in `touching` which place it is at, before it looks whether that is still the stream's.
 */
#ifndef ALIQUOT_GATE_STATE_H
#define ALIQUOT_GATE_STATE_H

#include "aliquot/lock.h"
#include "cost.h"
#include "hooked.h"

#include <stdbool.h>

#define GATE_STREAM_SETS 256u
#define GATE_STREAM_WAYS 8u
#define GATE_CONTEXTS 256u
#define GATE_USED (GATE_STREAM_SETS * GATE_STREAM_WAYS + GATE_CONTEXTS)
#define GATE_NO_MARK UINT32_MAX
#define GATE_LEAVING 2 /* a place's key while its stream is taken out */
#define GATE_MIXED 0   /* the key of a quantum with launches of several keys */

/* How long a quantum is while nobody waits for its end. */
#define GATE_ALONE_NS 8000000u
/* How long a launch waits for another thread that has the gate. */
#define GATE_PATIENCE_NS UINT64_C(20000000)

struct gate;
struct gate_context;

/* One stream: in the table by its key, or a context's legacy one. */
struct gate_stream {
	_Atomic uint64_t key;      /* 0: nobody's place */
	_Atomic uint64_t free;     /* the quantum in which its launches need nothing; 0: none */
	struct gate *_Atomic gate; /* NULL: it is not gated, and needs nothing ever */
	const _Atomic bool *_Atomic beside; /* another stream owes a mark that goes in before */
	_Atomic bool owes;                  /* it has launches without a mark */
	_Atomic bool overtaken;             /* the legacy one: too late for a mark that is no barrier */
	bool is_legacy, is_blocking;
	bool at_once;     /* its thread's, and others close the quanta: marked after each launch */
	uint32_t mark;    /* its word in the work page; GATE_NO_MARK: it has none yet */
	uintptr_t thread; /* whose default stream it is; 0: it has a name of its own */
	CUstream handle;
	struct gate_context *context;
	uint64_t id;     /* the driver's, which is never used twice; 0: it does not say */
	uint64_t gated;  /* the newest quantum that it has a gate for */
	uint64_t listed; /* the newest quantum that it is in the list of */
};

enum gate_context_state {
	GATE_CONTEXT_EMPTY,
	GATE_CONTEXT_MAKING, /* somebody is about to know: until then nothing here is gated */
	GATE_CONTEXT_GATED,
	GATE_CONTEXT_PLAIN,  /* no gates here: there can be none, or the context is broken */
	GATE_CONTEXT_ENDING, /* the driver is being asked to end it */
	GATE_CONTEXT_ENDED,  /* it has, and what is ours is still to be tidied up */
};

struct gate_context {
	_Atomic uint32_t state; /* enum gate_context_state */
	uint32_t state_before;  /* the driver was asked to end it */
	_Atomic(CUcontext) handle;
	struct gate *gate; /* of its slice; NULL: it has none */
	/* Its own mappings of the two pages, registered with it, and where the GPU finds them. */
	const void *credit_mapping;
	void *work_mapping;
	CUdeviceptr credit_word, marks;
	_Atomic uint32_t beginning; /* captures, just now: nobody touches the legacy stream */
	struct gate_stream legacy;
};

/* A stream in the open quantum's list; it may have become another's place since. */
struct gate_used {
	struct gate_stream *stream;
	uint64_t key;
};

/* Whose a word for marks is. */
struct gate_mark {
	_Atomic bool is_held; /* a stream has it */
	uint16_t context;     /* whose stream it was last; 1 is the first context, 0: nobody's */
};

/* One slice. */
struct gate {
	/* What every launch reads and writes. */
	_Alignas(64) _Atomic uint64_t open; /* the open quantum; 0: none */
	_Atomic uint64_t spent_ns;          /* what its launches cost so far */
	_Atomic uint64_t key;               /* of all its launches, or GATE_MIXED */
	_Atomic uint64_t unknown;           /* launches whose cost is not known */
	_Atomic uint64_t counted;           /* launches that are in spent_ns */
	_Atomic uint64_t alone_until; /* this launch is one too many; 0: it was not opened alone */
	_Atomic uint64_t before;      /* what was launched last */
	uint32_t index;               /* the slice's */
	const struct aliquot_credit_slice *credit;
	struct aliquot_work_slice *work;

	_Atomic bool taken, is_stuck; /* is_stuck: somebody waited for `taken` in vain */
	struct gate_stream *_Atomic touching;
	_Atomic uint32_t has_ended; /* contexts that wait for being tidied up */
	_Atomic uint64_t rang_ns;

	/* The taker's. */
	uint64_t opened, closed, done;
	uint64_t first_launch; /* work->launches when the open quantum began */
	uint32_t marks;        /* put into streams, ever (wraps) */
	bool is_solo;          /* the open quantum is one launch's */
	uint32_t graphs;       /* in the open quantum, of unknown cost */
	uint32_t timed;        /* the arbiter's timings read so far, and the last one */
	uint64_t timed_quantum, timed_busy_ns;
	uint64_t looked_ns, looked_done, looked_closed; /* our own last look; 0: none counts */
	uint32_t used_count;
	struct gate_used used[GATE_USED];
	struct gate_mark mark_of[ALIQUOT_MARKS];
	struct costs costs;
};

struct gates {
	struct aliquot_lock lock;
	_Atomic uint64_t closed_ns;        /* one that is alone closed what was open, to wait for it */
	_Atomic uint32_t open;             /* bit i: gate i has an open quantum */
	struct gate_context *_Atomic only; /* the only context there is */
	_Atomic bool has_others;           /* there are contexts that we do not know */
	_Atomic bool has_blocking;         /* there are, or were, blocking streams */
	_Atomic int32_t captures;          /* begun and not ended, as far as we see */
	_Atomic uint32_t context_end;      /* contexts from here on were never used */
	struct gate gates[ALIQUOT_MAX_GPUS];
	struct gate_context contexts[GATE_CONTEXTS];
	struct gate_stream streams[GATE_STREAM_SETS][GATE_STREAM_WAYS];
};

extern struct gates *_Atomic gates_page;

/* The memory, if this process has any use for it: not in a forked child. */
struct gates *gates_here(void);

/* --- looking up, with no lock ------------------------------------------------------------------ */

/* The calling thread, told from all others that live. */
ALWAYS_INLINE uintptr_t gate_thread(void)
{
	uintptr_t thread;
#if defined(__x86_64__)
	__asm__("movq %%fs:0, %0" : "=r"(thread));
#else
	__asm__("mrs %0, tpidr_el0" : "=r"(thread));
#endif
	return thread;
}

ALWAYS_INLINE uint64_t gate_thread_key(const struct gates *all, const struct gate_context *context)
{
	return gate_thread() | 1 | (uint64_t)(context - all->contexts) << 56;
}

ALWAYS_INLINE bool gate_is_legacy(CUstream stream, bool per_thread)
{
	return stream == CU_STREAM_LEGACY || (stream == NULL && !per_thread);
}

ALWAYS_INLINE bool gate_is_default(CUstream stream)
{
	return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

ALWAYS_INLINE struct gate_stream *gate_set(struct gates *all, uint64_t key)
{
	return all->streams[key * UINT64_C(0x9e3779b97f4a7c15) >> 56];
}

ALWAYS_INLINE struct gate_stream *gate_find_key(struct gates *all, uint64_t key)
{
	struct gate_stream *set = gate_set(all, key);
	for (unsigned i = 0; i < GATE_STREAM_WAYS; i++)
		if (atomic_load_explicit(&set[i].key, memory_order_acquire) == key)
			return &set[i];
	return NULL;
}

/* The place of a default stream of this context, which may be NULL; NULL: it has none. */
ALWAYS_INLINE struct gate_stream *gate_find_default(struct gates *all, struct gate_context *context,
                                                    CUstream stream, bool per_thread)
{
	if (!context)
		return NULL;
	if (!gate_is_legacy(stream, per_thread))
		return gate_find_key(all, gate_thread_key(all, context));
	bool is_there = atomic_load_explicit(&context->legacy.key, memory_order_acquire) == 1;
	return is_there ? &context->legacy : NULL;
}

/* --- counting, with no lock -------------------------------------------------------------------- */

ALWAYS_INLINE bool gate_must_mark_beside(const struct gate_stream *place)
{
	return atomic_load_explicit(atomic_load_explicit(&place->beside, memory_order_relaxed),
	                            memory_order_relaxed);
}

ALWAYS_INLINE uint64_t gate_budget(const struct gate *gate, uint32_t pace)
{
	if (pace == ALIQUOT_ALONE)
		return cost_of_time(&gate->costs, GATE_ALONE_NS);
	uint32_t ns = atomic_load_explicit(&gate->credit->quantum_ns, memory_order_relaxed);
	return cost_of_time(&gate->costs, ns ? ns : ALIQUOT_QUANTUM_NS);
}

/* The arbiter wants back what the open quantum has begun with. */
ALWAYS_INLINE bool gate_must_yield(const struct gate *gate, uint32_t pace, uint64_t open)
{
	return pace == ALIQUOT_YIELD &&
	       open <= atomic_load_explicit(&gate->credit->credit, memory_order_relaxed);
}

/* Threads that add at once may lose one's part: these are estimates, and an atomic addition would cost
 * as much as all the rest. */
ALWAYS_INLINE void gate_add(_Atomic uint64_t *sum, uint64_t part)
{
	atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + part,
	                      memory_order_relaxed);
}

ALWAYS_INLINE void gate_count(struct gate *gate, uint64_t key, uint32_t ns)
{
	gate_add(&gate->work->launches, 1);
	gate_add(&gate->counted, 1);
	if (!ns) {
		ns = atomic_load_explicit(&gate->costs.unknown_ns, memory_order_relaxed);
		gate_add(&gate->unknown, 1);
	}
	gate_add(&gate->spent_ns, ns);
	if (atomic_load_explicit(&gate->key, memory_order_relaxed) != key)
		atomic_store_explicit(&gate->key, GATE_MIXED, memory_order_relaxed);
}

/* For one more launch that costs so much; 0: nobody knows. */
ALWAYS_INLINE bool gate_has_room(const struct gate *gate, uint32_t pace, uint32_t ns)
{
	if (!ns)
		ns = atomic_load_explicit(&gate->costs.unknown_ns, memory_order_relaxed);
	uint64_t spent = atomic_load_explicit(&gate->spent_ns, memory_order_relaxed);
	return spent + ns <= gate_budget(gate, pace);
}

/* The same kernel takes different times at different places of a program, and what was launched before
 * it tells the places apart. A graph is a place of its own. */
ALWAYS_INLINE uint64_t gate_cost_key(const struct gate *gate, uint64_t key, bool is_graph)
{
	uint64_t before = atomic_load_explicit(&gate->before, memory_order_relaxed);
	return is_graph ? key : key ^ (before << 21 | before >> 43);
}

/* Count a launch into the open quantum, if there is no more to it than that. */
ALWAYS_INLINE bool gate_count_free(struct gate *gate, uint64_t open, uint64_t key, bool is_graph)
{
	const struct aliquot_credit_slice *credit = gate->credit;
	uint32_t pace = atomic_load_explicit(&credit->pace, memory_order_relaxed);
	if (atomic_load_explicit(&credit->ring, memory_order_relaxed))
		return false;
	/* Alone a quantum is so many launches of any kind. */
	if (pace == ALIQUOT_ALONE && !is_graph) {
		uint64_t number = atomic_load_explicit(&gate->work->launches, memory_order_relaxed);
		if (number >= atomic_load_explicit(&gate->alone_until, memory_order_relaxed))
			return false;
		atomic_store_explicit(&gate->work->launches, number + 1, memory_order_relaxed);
		return true;
	}
	if (pace != ALIQUOT_ALONE && atomic_load_explicit(&gate->alone_until, memory_order_relaxed))
		return false; /* it was opened alone */
	uint64_t cost_key = gate_cost_key(gate, key, is_graph);
	struct cost *cost = cost_find(&gate->costs, cost_key);
	uint32_t ns = cost_of(cost);
	if ((is_graph && !ns) || !gate_has_room(gate, pace, ns))
		return false;
	if (pace != ALIQUOT_ALONE) {
		uint32_t number = cost ? atomic_load_explicit(&cost->launches, memory_order_relaxed) + 1
		                       : 1;
		if (cost_is_due(number) || gate_must_yield(gate, pace, open))
			return false;
		atomic_store_explicit(&cost->launches, number, memory_order_relaxed);
	}
	gate_count(gate, cost_key, ns);
	atomic_store_explicit(&gate->before, key, memory_order_relaxed);
	return true;
}

/* --- the files of the gates --------------------------------------------------------------------- */

/* gate.c */

/* Take a gate; false: somebody else has it, for longer than we are ready to wait. */
bool gate_take(struct gate *gate, uint64_t patience_ns);
void gate_give(struct gate *gate);
uint64_t gate_now_ns(void);
/* The mode in which no call of ours spoils a capture, and back to the thread's own. */
CUstreamCaptureMode gate_relax(void);
void gate_restrict(CUstreamCaptureMode mode);
/* Whether a stream captures, or the driver will not say. */
bool gate_captures(CUstream stream);

/* quantum.c; precondition of all: the gate is taken, and calls are made in the relaxed mode. */

struct gate_launch;
/* Count a launch in, with all that must be done for it before. */
void quantum_add(struct gate *gate, struct gate_stream *stream, struct gate_launch *launch);
/* Close the open quantum, if there is one. */
void quantum_close(struct gate *gate);
/* A mark for what a stream owes, ahead of the quantum's end. */
void quantum_mark(struct gate *gate, struct gate_stream *stream);

/* gate_stream.c */

/* The stream's place, made if there was none; NULL: there is no room. Precondition: taken. */
struct gate_stream *gate_place(struct gate *gate, struct gate_context *context, CUstream stream,
                               bool per_thread);
/* The stream of a context with no gates: it never needs anything. */
void gate_place_plain(struct gate_context *context, CUstream stream, bool per_thread);
/* Take a stream out, or all of a context: they are in nobody's hands then. */
void gate_drop_stream(struct gates *all, uint64_t key);
void gate_drop_streams(struct gates *all, struct gate_context *context);
/* A context's legacy stream, and the same backwards. */
void gate_place_legacy(struct gate_context *context);
void gate_drop_legacy(struct gate_context *context);
/* A word for its marks; false: there is none. Precondition: taken. */
bool gate_take_mark(struct gate *gate, struct gate_stream *stream);
/* Say that this place is about to be touched; false: it is no longer who it was. Precondition: taken.
 */
bool gate_touch(struct gate *gate, struct gate_stream *stream, uint64_t key);
void gate_touch_end(struct gate *gate);
/* Wait until nobody touches a place. */
void gate_wait_untouched(struct gate *gate, const struct gate_stream *stream);

/* stream.c */

/* A stream goes out of our hands: its mark goes in now, and then nobody touches it any more. */
void gate_let_go(struct gates *all, uint64_t key);

/* gate_context.c */

/* The calling thread's context, and any, if it is known. */
struct gate_context *gate_current_context(struct gates *all);
struct gate_context *gate_find_context(struct gates *all, CUcontext context);
/* The context, made known if it was not; NULL: there is no place for it. */
struct gate_context *gate_know_context(struct gates *all, CUcontext context);
/* Nothing in it will ever be done. Precondition: taken. */
void gate_context_broken(struct gate_context *context);
/* Contexts that have ended. Precondition: taken. */
void gate_tidy_up(struct gate *gate);
/* Whether after this result nothing in the context will ever be done. */
bool gate_breaks(CUresult result);

/* gate_equip.c */

/* What the context needs for gates; an error: there can be none in it. Precondition: it is current. */
CUresult gate_equip(struct gate_context *context, CUdevice device);
/* The context has ended. */
void gate_unequip(struct gate_context *context);

/* gate_context.c: make a context current, if it is not; *pushed: and it must be popped again. False: it
 * cannot be. */
bool gate_push(const struct gate_context *context, bool *pushed);
void gate_pop(bool pushed);

#endif
