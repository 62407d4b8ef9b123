#define _GNU_SOURCE
#include "gate/streams.h"

#include "gate/base.h"
#include "gate/contexts.h"
#include "gate/marks.h"

#include <time.h>

#define EACH_WAY(slot, set)                                                                        \
	for (struct gate_stream *slot = (set), *end_ = slot + GATE_STREAM_WAYS; slot < end_; slot++)

/* What `legacy_unmarked` points to for streams that do not wait for the legacy one. */
static const _Atomic bool never;

/* --- touching --------------------------------------------------------------------------------- */

/* Write `touching`, then read the key. A remover writes the key, then reads `touching`. */
bool gate_touch(struct gate *gate, struct gate_stream *slot, uint64_t key)
{
	INVARIANT(gate_is_mine(gate));
	INVARIANT(!atomic_load(&gate->touching));
	atomic_store(&gate->touching, slot);
	if (atomic_load(&slot->key) == key && atomic_load(&slot->gate) == gate &&
	    !(slot->is_legacy && atomic_load(&slot->context->captures_beginning)))
		return true;
	gate_touch_end(gate);
	return false;
}

void gate_touch_end(struct gate *gate)
{
	INVARIANT(gate_is_mine(gate));
	atomic_store_explicit(&gate->touching, NULL, memory_order_release);
}

void gate_wait_untouched(struct gate *gate, const struct gate_stream *slot)
{
	struct timespec pause = {.tv_nsec = 50 * 1000};
	while (gate && atomic_load(&gate->touching) == slot) {
		INVARIANT(!gate_is_mine(gate));
		nanosleep(&pause, NULL);
	}
}

static bool is_touched(struct gates *all, const struct gate_stream *slot)
{
	for (unsigned i = 0; i < ALIQUOT_MAX_GPUS; i++)
		if (atomic_load(&all->gates[i].touching) == slot)
			return true;
	return false;
}

/* --- removing --------------------------------------------------------------------------------- */

/* Precondition: the caller has written REMOVING into the key. */
static void empty_slot(struct gate_stream *slot)
{
	struct gate *gate = atomic_load_explicit(&slot->gate, memory_order_relaxed);
	INVARIANT(atomic_load(&slot->key) == GATE_KEY_REMOVING);
	gate_wait_untouched(gate, slot);
	gate_mark_word_return(gate, slot);
	atomic_store_explicit(&slot->prepared, 0, memory_order_relaxed);
	atomic_store_explicit(&slot->unmarked, false, memory_order_relaxed);
	atomic_store_explicit(&slot->key, GATE_KEY_EMPTY, memory_order_release);
}

void gate_remove_stream(struct gates *all, uint64_t key)
{
	gates_lock(all);
	struct gate_stream *slot = gate_find_stream(all, key);
	if (slot)
		atomic_store(&slot->key, GATE_KEY_REMOVING);
	gates_unlock(all);
	if (slot)
		empty_slot(slot);
}

/* The key of any of the context's streams; GATE_KEY_EMPTY: it has none. */
static uint64_t find_key_of(struct gates *all, const struct gate_context *context)
{
	uint64_t found = GATE_KEY_EMPTY;
	gates_lock(all);
	for (unsigned i = 0; i < GATE_STREAM_SETS && !found; i++)
		EACH_WAY (slot, all->streams[i]) {
			uint64_t key = atomic_load_explicit(&slot->key, memory_order_relaxed);
			if (key > GATE_KEY_REMOVING && slot->context == context)
				found = key;
		}
	gates_unlock(all);
	return found;
}

void gate_remove_streams(struct gates *all, struct gate_context *context)
{
	for (uint64_t key; (key = find_key_of(all, context)) != GATE_KEY_EMPTY;)
		gate_remove_stream(all, key);
}

void gate_remove_legacy_stream(struct gate_context *context)
{
	uint64_t key = GATE_KEY_LEGACY;
	if (atomic_compare_exchange_strong(&context->legacy.key, &key, GATE_KEY_REMOVING))
		empty_slot(&context->legacy);
}

/* --- adding ----------------------------------------------------------------------------------- */

/* Write everything but the key. Precondition: the caller owns the slot. */
static void fill_slot(struct gate_stream *slot, struct gate_context *context, struct gate *gate)
{
	atomic_store_explicit(&slot->prepared, 0, memory_order_relaxed);
	atomic_store_explicit(&slot->unmarked, false, memory_order_relaxed);
	atomic_store_explicit(&slot->overtaken, false, memory_order_relaxed);
	atomic_store_explicit(&slot->gate, gate, memory_order_relaxed);
	atomic_store_explicit(&slot->legacy_unmarked,
	                      slot->is_blocking ? &context->legacy.unmarked : &never,
	                      memory_order_relaxed);
	slot->context = context;
	slot->mark_word = GATE_NO_MARK_WORD;
	slot->mark_each_launch = false;
	slot->gated_quantum = slot->listed_quantum = 0;
}

/* Whether a stream may lose its slot to another: not while it is in the open quantum's list. */
static bool is_replaceable(const struct gate_stream *slot, struct gate *gate)
{
	return gate && atomic_load_explicit(&slot->gate, memory_order_relaxed) == gate &&
	       atomic_load_explicit(&slot->key, memory_order_relaxed) > GATE_KEY_REMOVING &&
	       slot->listed_quantum != gate->opened;
}

/* A slot for the key that the caller owns; NULL: there is none. Precondition: the lock; `gate` is
 * taken or NULL. */
static struct gate_stream *reserve_slot(struct gates *all, struct gate *gate, uint64_t key)
{
	EACH_WAY (slot, gate_stream_set(all, key))
		if (atomic_load_explicit(&slot->key, memory_order_acquire) == GATE_KEY_EMPTY &&
		    !is_touched(all, slot))
			return slot;
	EACH_WAY (slot, gate_stream_set(all, key))
		if (is_replaceable(slot, gate)) {
			INVARIANT(gate_is_mine(gate) && atomic_load(&gate->touching) != slot);
			atomic_store(&slot->key, GATE_KEY_REMOVING);
			gate_mark_word_return(gate, slot);
			return slot;
		}
	return NULL;
}

/* What the driver says about a stream. */
struct stream_facts {
	CUstream handle;
	uint64_t id;
	bool is_blocking;
};

static struct stream_facts ask_driver(CUstream handle)
{
	unsigned flags = 0;
	unsigned long long id = 0;
	REAL(cuStreamGetFlags)(handle, &flags);
	if (REAL(cuStreamGetId) && REAL(cuStreamGetId)(handle, &id) != CUDA_SUCCESS)
		id = 0;
	return (struct stream_facts){handle, id, !(flags & CU_STREAM_NON_BLOCKING)};
}

static struct gate_stream *add_stream(struct gates *all, struct gate_context *context,
                                      struct gate *gate, uint64_t key,
                                      const struct stream_facts *facts)
{
	if (facts->is_blocking)
		atomic_store_explicit(&all->has_blocking_streams, true, memory_order_relaxed);
	gates_lock(all);
	struct gate_stream *slot = gate_find_stream(all, key) ? NULL : reserve_slot(all, gate, key);
	if (slot) {
		slot->handle = facts->handle;
		slot->id = facts->id;
		slot->is_blocking = facts->is_blocking;
		slot->thread = facts->handle == CU_STREAM_PER_THREAD ? gate_thread() : 0;
		fill_slot(slot, context, gate);
		atomic_store_explicit(&slot->key, key, memory_order_release);
	}
	gates_unlock(all);
	return slot;
}

static uint64_t key_of(const struct gates *all, const struct gate_context *context, CUstream stream)
{
	return gate_is_default(stream) ? gate_thread_key(all, context) : (uint64_t)(uintptr_t)stream;
}

/* The handle that means the same through every entry point of the driver. */
static CUstream handle_of(CUstream stream)
{
	return gate_is_default(stream) ? CU_STREAM_PER_THREAD : stream;
}

struct gate_stream *gate_stream_slot(struct gate *gate, struct gate_context *context,
                                     CUstream stream, bool per_thread)
{
	struct gates *all = atomic_load(&gates_page);
	INVARIANT(gate_is_mine(gate));
	if (gate_is_legacy(stream, per_thread))
		return atomic_load(&context->legacy.key) == GATE_KEY_LEGACY ? &context->legacy : NULL;
	uint64_t key = key_of(all, context, stream);
	struct gate_stream *slot = gate_find_stream(all, key);
	if (slot && atomic_load(&slot->gate) != gate)
		return NULL;
	uint64_t open_quantum = atomic_load_explicit(&gate->open_quantum, memory_order_relaxed);
	if (slot && open_quantum && slot->gated_quantum == open_quantum)
		return slot;
	struct stream_facts facts = ask_driver(handle_of(stream));
	/* The driver may have given the handle to a new stream, or a new thread may have the number of
	 * one that has ended. */
	if (slot && (slot->context != context || slot->id != facts.id)) {
		gate_remove_stream(all, key);
		slot = NULL;
	}
	return slot ? slot : add_stream(all, context, gate, key, &facts);
}

void gate_add_plain_stream(struct gate_context *context, CUstream stream, bool per_thread)
{
	struct gates *all = atomic_load(&gates_page);
	if (gate_is_legacy(stream, per_thread))
		return;
	struct stream_facts facts = {.handle = handle_of(stream)};
	add_stream(all, context, NULL, key_of(all, context, stream), &facts);
}

void gate_add_legacy_stream(struct gate_context *context, struct gate *gate)
{
	struct gate_stream *legacy = &context->legacy;
	legacy->handle = CU_STREAM_LEGACY;
	legacy->is_legacy = true;
	legacy->is_blocking = false; /* it is the one that blocking streams wait for */
	fill_slot(legacy, context, gate);
	atomic_store_explicit(&legacy->key, GATE_KEY_LEGACY, memory_order_release);
}

void gate_abandon_context(struct gate_context *context)
{
	struct gates *all = atomic_load(&gates_page);
	INVARIANT(gate_is_mine(context->gate));
	if (!gate_change_state(all, context, GATE_CONTEXT_GATED, GATE_CONTEXT_PLAIN))
		return;
	gate_remove_streams(all, context);
	gate_remove_legacy_stream(context);
	gate_add_legacy_stream(context, NULL);
	gate_marks_complete(all, context);
}
