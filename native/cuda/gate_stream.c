/* The places of streams, and the words for their marks. */
#define _GNU_SOURCE
#include "gate_state.h"

#include <time.h>

#define EACH_WAY(place, set)                                                                       \
	for (struct gate_stream *place = (set), *end_ = place + GATE_STREAM_WAYS; place < end_; place++)

/* What `beside` points to where no other stream must be marked first. */
static const _Atomic bool never;

/* --- who is in whose hands ---------------------------------------------------------------------- */

/* Who touches says so, then looks at the key; who drops changes the key, then looks who touches. In
 * that order for all, so that one of the two sees the other. */
bool gate_touch(struct gate *gate, struct gate_stream *stream, uint64_t key)
{
	atomic_store(&gate->touching, stream);
	if (atomic_load(&stream->key) == key && atomic_load(&stream->gate) == gate &&
	    !(stream->is_legacy && atomic_load(&stream->context->beginning)))
		return true;
	gate_touch_end(gate);
	return false;
}

void gate_touch_end(struct gate *gate)
{
	atomic_store_explicit(&gate->touching, NULL, memory_order_release);
}

void gate_wait_untouched(struct gate *gate, const struct gate_stream *stream)
{
	struct timespec moment = {.tv_nsec = 50 * 1000};
	while (gate && atomic_load(&gate->touching) == stream)
		nanosleep(&moment, NULL);
}

static bool is_touched(struct gates *all, const struct gate_stream *stream)
{
	for (unsigned i = 0; i < ALIQUOT_MAX_GPUS; i++)
		if (atomic_load(&all->gates[i].touching) == stream)
			return true;
	return false;
}

/* --- words for marks ---------------------------------------------------------------------------- */

/* The lowest that no stream has and whose marks have all come: the arbiter reads up to the highest
 * ever used. */
bool gate_take_mark(struct gate *gate, struct gate_stream *stream)
{
	struct aliquot_work_slice *work = gate->work;
	for (uint32_t i = 0; stream->mark == GATE_NO_MARK && i < ALIQUOT_MARKS; i++) {
		struct aliquot_mark *word = &work->marks[i];
		if (atomic_load_explicit(&gate->mark_of[i].is_held, memory_order_acquire) ||
		    atomic_load_explicit(&word->done, memory_order_relaxed) !=
		        atomic_load_explicit(&word->asked, memory_order_relaxed))
			continue;
		atomic_store_explicit(&gate->mark_of[i].is_held, true, memory_order_relaxed);
		gate->mark_of[i].context = (uint16_t)(stream->context - atomic_load(&gates_page)->contexts +
		                                      1);
		stream->mark = i;
		if (i >= atomic_load_explicit(&work->marks_end, memory_order_relaxed))
			atomic_store_explicit(&work->marks_end, i + 1, memory_order_release);
	}
	return stream->mark != GATE_NO_MARK;
}

/* Marks may still be on their way: then the word is taken again when they have come. */
static void give_mark(struct gate *gate, struct gate_stream *stream)
{
	if (gate && stream->mark != GATE_NO_MARK)
		atomic_store_explicit(&gate->mark_of[stream->mark].is_held, false, memory_order_release);
	stream->mark = GATE_NO_MARK;
}

/* --- taking out --------------------------------------------------------------------------------- */

/* Precondition: its key says that it is leaving, so it is in the caller's hands alone. */
static void clear(struct gate_stream *stream)
{
	struct gate *gate = atomic_load_explicit(&stream->gate, memory_order_relaxed);
	gate_wait_untouched(gate, stream);
	give_mark(gate, stream);
	atomic_store_explicit(&stream->free, 0, memory_order_relaxed);
	atomic_store_explicit(&stream->owes, false, memory_order_relaxed);
	atomic_store_explicit(&stream->key, 0, memory_order_release);
}

void gate_drop_stream(struct gates *all, uint64_t key)
{
	aliquot_lock(&all->lock);
	struct gate_stream *place = gate_find_key(all, key);
	if (place)
		atomic_store(&place->key, GATE_LEAVING);
	aliquot_unlock(&all->lock);
	if (place)
		clear(place);
}

static uint64_t a_key_of(struct gates *all, const struct gate_context *context)
{
	uint64_t found = 0;
	aliquot_lock(&all->lock);
	for (unsigned i = 0; i < GATE_STREAM_SETS && !found; i++)
		EACH_WAY (place, all->streams[i]) {
			uint64_t key = atomic_load_explicit(&place->key, memory_order_relaxed);
			if (key > GATE_LEAVING && place->context == context)
				found = key;
		}
	aliquot_unlock(&all->lock);
	return found;
}

void gate_drop_streams(struct gates *all, struct gate_context *context)
{
	for (uint64_t key = a_key_of(all, context); key; key = a_key_of(all, context))
		gate_drop_stream(all, key);
}

/* --- putting in --------------------------------------------------------------------------------- */

/* Everything but the key. Precondition: the place is the caller's alone. */
static void fill(struct gate_stream *place, struct gate_context *context, struct gate *gate)
{
	atomic_store_explicit(&place->free, 0, memory_order_relaxed);
	atomic_store_explicit(&place->owes, false, memory_order_relaxed);
	atomic_store_explicit(&place->overtaken, false, memory_order_relaxed);
	atomic_store_explicit(&place->gate, gate, memory_order_relaxed);
	atomic_store_explicit(&place->beside, place->is_blocking ? &context->legacy.owes : &never,
	                      memory_order_relaxed);
	place->context = context;
	place->mark = GATE_NO_MARK;
	place->at_once = false;
	place->gated = place->listed = 0;
}

/* Not one that is in the open quantum. */
static bool may_go(const struct gate_stream *place, struct gate *gate)
{
	return gate && atomic_load_explicit(&place->gate, memory_order_relaxed) == gate &&
	       atomic_load_explicit(&place->key, memory_order_relaxed) > GATE_LEAVING &&
	       place->listed != gate->opened;
}

/* A place in the key's set. Precondition: the lock; `gate` is taken or NULL. */
static struct gate_stream *make_room(struct gates *all, struct gate *gate, uint64_t key)
{
	EACH_WAY (place, gate_set(all, key))
		if (atomic_load_explicit(&place->key, memory_order_acquire) == 0 && !is_touched(all, place))
			return place;
	EACH_WAY (place, gate_set(all, key))
		if (may_go(place, gate)) {
			atomic_store(&place->key, GATE_LEAVING);
			give_mark(gate, place);
			return place;
		}
	return NULL;
}

/* What the driver knows of a stream, asked before any lock is held. */
struct answers {
	CUstream handle;
	uint64_t id;
	bool is_blocking;
};

static struct answers ask(CUstream handle)
{
	unsigned flags = 0;
	unsigned long long id = 0;
	REAL(cuStreamGetFlags)(handle, &flags);
	if (REAL(cuStreamGetId) && REAL(cuStreamGetId)(handle, &id) != CUDA_SUCCESS)
		id = 0;
	return (struct answers){handle, id, !(flags & CU_STREAM_NON_BLOCKING)};
}

static struct gate_stream *add(struct gates *all, struct gate_context *context, struct gate *gate,
                               uint64_t key, const struct answers *answers)
{
	if (answers->is_blocking)
		atomic_store_explicit(&all->has_blocking, true, memory_order_relaxed);
	aliquot_lock(&all->lock);
	struct gate_stream *place = gate_find_key(all, key) ? NULL : make_room(all, gate, key);
	if (place) {
		place->handle = answers->handle;
		place->id = answers->id;
		place->is_blocking = answers->is_blocking;
		place->thread = answers->handle == CU_STREAM_PER_THREAD ? gate_thread() : 0;
		fill(place, context, gate);
		atomic_store_explicit(&place->key, key, memory_order_release);
	}
	aliquot_unlock(&all->lock);
	return place;
}

/* The calling thread's default stream goes by the thread, since its handle is everybody's. */
static uint64_t key_of(const struct gates *all, const struct gate_context *context, CUstream stream)
{
	return gate_is_default(stream) ? gate_thread_key(all, context) : (uint64_t)(uintptr_t)stream;
}

static CUstream name_of(CUstream stream)
{
	return gate_is_default(stream) ? CU_STREAM_PER_THREAD : stream;
}

struct gate_stream *gate_place(struct gate *gate, struct gate_context *context, CUstream stream,
                               bool per_thread)
{
	struct gates *all = atomic_load(&gates_page);
	if (gate_is_legacy(stream, per_thread))
		return atomic_load(&context->legacy.key) == 1 ? &context->legacy : NULL;
	uint64_t key = key_of(all, context, stream);
	struct gate_stream *place = gate_find_key(all, key);
	if (place && atomic_load(&place->gate) != gate)
		return NULL;
	uint64_t open = atomic_load_explicit(&gate->open, memory_order_relaxed);
	if (place && open && place->gated == open)
		return place;
	struct answers answers = ask(name_of(stream));
	/* A handle may be another stream's by now, or a thread another one's place. */
	if (place && (place->context != context || place->id != answers.id)) {
		gate_drop_stream(all, key);
		place = NULL;
	}
	return place ? place : add(all, context, gate, key, &answers);
}

void gate_place_plain(struct gate_context *context, CUstream stream, bool per_thread)
{
	struct gates *all = atomic_load(&gates_page);
	if (gate_is_legacy(stream, per_thread))
		return;
	struct answers answers = {.handle = name_of(stream)};
	add(all, context, NULL, key_of(all, context, stream), &answers);
}

void gate_place_legacy(struct gate_context *context)
{
	struct gate_stream *legacy = &context->legacy;
	bool gated = atomic_load(&context->state) == GATE_CONTEXT_GATED;
	legacy->handle = CU_STREAM_LEGACY;
	legacy->is_legacy = true;
	legacy->is_blocking = false; /* it is what the blocking ones wait for */
	fill(legacy, context, gated ? context->gate : NULL);
	atomic_store_explicit(&legacy->key, 1, memory_order_release);
}

void gate_drop_legacy(struct gate_context *context)
{
	uint64_t here = 1;
	if (atomic_compare_exchange_strong(&context->legacy.key, &here, GATE_LEAVING))
		clear(&context->legacy);
}
