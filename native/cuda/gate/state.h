/* The data of the gates: one gate per slice, a table of contexts, a table of streams. gate.h has
 * the model and the invariants, among them which thread writes which field.
 *
 * All of it lies in one block of memory that the kernel wipes in a forked child. */
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
#define GATE_NO_MARK_WORD UINT32_MAX
#define GATE_TRIAL_WORD (ALIQUOT_MARKS - 1) /* the self-test's; no stream has it */
#define GATE_MIXED 0                        /* the key of a quantum with launches of several keys */

/* Values of a stream slot's key. All other keys are larger. */
#define GATE_KEY_EMPTY UINT64_C(0)
#define GATE_KEY_LEGACY UINT64_C(1)   /* a context's legacy stream */
#define GATE_KEY_REMOVING UINT64_C(2) /* the stream is being removed from its slot */

/* The length of a quantum while no other process wants the GPU. */
#define GATE_ALONE_NS 8000000u
/* How long a launch waits for another thread that has the gate. */
#define GATE_PATIENCE_NS UINT64_C(20000000)

struct gate;
struct gate_context;

/* A slot for one stream: in the table by its key, or a context's legacy stream. */
struct gate_stream {
	_Atomic uint64_t key;
	_Atomic uint64_t prepared; /* a launch in this quantum only needs to be counted; 0: in none */
	struct gate *_Atomic gate; /* NULL: the stream is not gated, its launches never need anything */
	/* The flag `unmarked` of the legacy stream that must get its mark before anything is put into
	 * this stream; for a stream that does not wait for the legacy one, a flag that is never set. */
	const _Atomic bool *_Atomic legacy_unmarked;
	_Atomic bool unmarked;  /* it has launches that no mark follows */
	_Atomic bool overtaken; /* legacy stream only: a mark now would be a barrier */
	bool is_legacy, is_blocking;
	bool mark_each_launch; /* a per-thread stream whose quanta other threads close */
	uint32_t mark_word;    /* its index in the work page; GATE_NO_MARK_WORD: none yet */
	uintptr_t thread;      /* the thread whose default stream it is; 0: it has its own handle */
	CUstream handle;
	struct gate_context *context;
	uint64_t id;             /* the driver's ID, which is never reused; 0: the driver gives none */
	uint64_t gated_quantum;  /* the newest quantum that it has a gate for */
	uint64_t listed_quantum; /* the newest quantum whose list of used streams it is in */
};

enum gate_context_state {
	GATE_CONTEXT_EMPTY,
	GATE_CONTEXT_ADDING, /* a thread is setting it up; until then nothing in it is gated */
	GATE_CONTEXT_GATED,
	GATE_CONTEXT_PLAIN,  /* not gated: gates do not work in it, or a sticky error has broken it */
	GATE_CONTEXT_ENDING, /* the driver is being asked to destroy it */
	GATE_CONTEXT_ENDED,  /* the driver has destroyed it; its slot is still to be freed */
};

struct gate_context {
	_Atomic uint32_t state; /* enum gate_context_state */
	uint32_t state_before;  /* the state before ENDING */
	_Atomic(CUcontext) handle;
	struct gate *gate; /* its slice's; NULL: it has none */
	/* Its own mappings of the two pages, registered in it, and their addresses on the GPU. */
	const void *credit_mapping;
	void *work_mapping;
	CUdeviceptr credit_word, marks;
	_Atomic uint32_t captures_beginning; /* above 0: nobody touches the legacy stream */
	struct gate_stream legacy;
};

/* A stream in the open quantum's list. The slot may hold another stream by now: the key tells. */
struct gate_used {
	struct gate_stream *stream;
	uint64_t key;
};

/* The owner of a mark word. */
struct gate_mark {
	_Atomic bool is_held; /* a stream has it */
	uint16_t context;     /* 1 + the index of the context whose stream had it last; 0: none */
};

/* One slice. */
struct gate {
	/* What every launch reads and writes, with no lock. */
	_Alignas(64) _Atomic uint64_t open_quantum; /* 0: none is open */
	_Atomic uint64_t spent_ns;                  /* the expected cost of its launches so far */
	_Atomic uint64_t key;                       /* of all its launches, or GATE_MIXED */
	_Atomic uint64_t unknown_launches;          /* its launches whose cost is not known */
	_Atomic uint64_t counted;                   /* its launches that are in spent_ns */
	_Atomic uint64_t alone_until; /* the launch that ends it; 0: it was not opened alone */
	_Atomic uint64_t last_key;    /* of the newest launch */
	uint32_t index;               /* the slice's */
	const struct aliquot_credit_slice *credit;
	struct aliquot_work_slice *work;

	_Atomic bool taken, is_stuck; /* is_stuck: a thread waited for `taken` in vain */
	struct gate_stream *_Atomic touching;
	_Atomic uint32_t ended_contexts; /* in state ENDED, whose slots are still to be freed */
	_Atomic uint64_t rang_ns;

	/* For the holder of `taken` alone. */
	int cancel;                    /* whether its thread could be cancelled before (cancel.h) */
	uint64_t opened, closed, done; /* the newest quantum opened, closed, over */
	uint64_t first_launch;         /* work->launches when the open quantum was opened */
	uint32_t marks_inserted;       /* ever (wraps) */
	bool is_solo;                  /* the open quantum is for one launch, to measure it */
	uint32_t unknown_graphs;       /* graph launches of unknown cost in the open quantum */
	uint32_t timings_read;         /* of the arbiter's; the newest one's figures are: */
	uint64_t timed_quantum, timed_busy_ns;
	uint64_t looked_ns, looked_done, looked_closed; /* our own last look; looked_ns 0: none */
	uint32_t used_count;
	struct gate_used used[GATE_USED];
	struct gate_mark mark_owners[ALIQUOT_MARKS];
	struct costs costs;
#ifdef ALIQUOT_SANITIZE
	_Atomic uintptr_t holder; /* the thread that has `taken`; 0: none */
#endif
};

struct gates {
	struct aliquot_lock lock;
	_Atomic uint64_t closed_ns;                /* the last closing of quanta that run alone */
	_Atomic uint32_t open_gates;               /* bit i: gate i has an open quantum */
	struct gate_context *_Atomic only_context; /* set while there is exactly one */
	_Atomic bool has_unknown_contexts;         /* contexts that are not in the table */
	_Atomic bool has_blocking_streams;         /* there are, or were, blocking streams */
	_Atomic int32_t captures;                  /* begun and not seen to end */
	struct gate_context *_Atomic draining;     /* whose work a thread waits for (drain.c) */
	_Atomic uint32_t context_end;              /* slots from here on were never used */
	struct gate gates[ALIQUOT_MAX_GPUS];
	struct gate_context contexts[GATE_CONTEXTS];
	struct gate_stream streams[GATE_STREAM_SETS][GATE_STREAM_WAYS];
#ifdef ALIQUOT_SANITIZE
	_Atomic uintptr_t lock_holder; /* the thread that has `lock`; 0: none */
#endif
};

/* What is launched, and how: made by a hook. */
struct gate_launch {
	CUstream stream;
	uint64_t key;    /* cost_key */
	bool per_thread; /* NULL means the calling thread's default stream */
	bool is_graph;   /* its cost must be known before it shares a quantum */
	/* Written by gate_before, for gate_after. */
	struct gate *gate;
	struct gate_stream
		*mark_after; /* the stream that gets a mark right after the launch, or NULL */
};

extern struct gates *_Atomic gates_page;

/* --- lookups, with no lock -------------------------------------------------------------------- */

/* A number that tells the calling thread from all other living threads. */
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

/* The key of the calling thread's default stream: all threads use the same handle for it. */
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

ALWAYS_INLINE struct gate_stream *gate_stream_set(struct gates *all, uint64_t key)
{
	return all->streams[key * UINT64_C(0x9e3779b97f4a7c15) >> 56];
}

/* The slot of the stream with this key; NULL: it has none. */
ALWAYS_INLINE struct gate_stream *gate_find_stream(struct gates *all, uint64_t key)
{
	struct gate_stream *set = gate_stream_set(all, key);
	for (unsigned i = 0; i < GATE_STREAM_WAYS; i++)
		if (atomic_load_explicit(&set[i].key, memory_order_acquire) == key)
			return &set[i];
	return NULL;
}

/* The slot of a context's default stream; NULL: it has none, or `context` is NULL. */
ALWAYS_INLINE struct gate_stream *gate_find_default(struct gates *all, struct gate_context *context,
                                                    CUstream stream, bool per_thread)
{
	if (!context)
		return NULL;
	if (!gate_is_legacy(stream, per_thread))
		return gate_find_stream(all, gate_thread_key(all, context));
	bool is_there = atomic_load_explicit(&context->legacy.key, memory_order_acquire) ==
	                GATE_KEY_LEGACY;
	return is_there ? &context->legacy : NULL;
}

/* Whether the legacy stream must get its mark before anything is put into this stream. */
ALWAYS_INLINE bool gate_must_mark_legacy_first(const struct gate_stream *stream)
{
	return atomic_load_explicit(atomic_load_explicit(&stream->legacy_unmarked,
	                                                 memory_order_relaxed),
	                            memory_order_relaxed);
}

ALWAYS_INLINE uint32_t gate_state_of(const struct gate_context *context)
{
	return atomic_load_explicit(&context->state, memory_order_acquire);
}

/* Whether the arbiter has other processes take turns with this one, so that quanta must be short.
 */
static inline bool gate_takes_turns(const struct gate *gate)
{
	return atomic_load_explicit(&gate->credit->pace, memory_order_relaxed) != ALIQUOT_ALONE;
}

#endif
