#include "gate/insert.h"

#include "gate/base.h"
#include "gate/contexts.h"
#include "gate/marks.h"
#include "gate/streams.h"

static CUresult write_mark(struct gate *gate, const struct gate_stream *stream)
{
	struct aliquot_mark *word = &gate->work->marks[stream->mark_word];
	uint64_t asked = atomic_load_explicit(&word->asked, memory_order_relaxed) + 1;
	atomic_store_explicit(&word->asked, asked, memory_order_release);
	CUresult result = REAL(cuStreamWriteValue64_v2)(stream->handle,
	                                                stream->context->marks +
	                                                    stream->mark_word * sizeof(*word),
	                                                asked, 0);
	if (result == CUDA_SUCCESS)
		gate->marks_inserted++;
	else
		atomic_store_explicit(&word->asked, asked - 1, memory_order_release);
	return result;
}

/* Another thread's default stream has no handle here. */
static bool is_another_threads(struct gate_stream *stream)
{
	if (!stream->thread || stream->thread == gate_thread())
		return false;
	stream->mark_each_launch = true;
	return true;
}

/* Precondition: it is being touched. */
static CUresult mark_touched(struct gate *gate, struct gate_stream *stream)
{
	CUresult result = CUDA_SUCCESS;
	bool pushed;
	INVARIANT(atomic_load(&gate->touching) == stream);
	INVARIANT(stream->is_legacy || !atomic_load(&stream->overtaken));
	if (gate_push_context(stream->context, &pushed) &&
	    !atomic_load_explicit(&stream->overtaken, memory_order_relaxed) &&
	    !is_another_threads(stream) && !gate_is_capturing(stream->handle) &&
	    gate_mark_word_assign(gate, stream))
		result = write_mark(gate, stream);
	gate_pop_context(pushed);
	atomic_store_explicit(&stream->prepared, 0, memory_order_relaxed);
	atomic_store_explicit(&stream->unmarked, false, memory_order_relaxed);
	return result;
}

void gate_insert_mark(struct gate *gate, struct gate_stream *stream, uint64_t key)
{
	INVARIANT(gate_is_relaxed());
	if (!gate_touch(gate, stream, key))
		return;
	struct gate_context *context = stream->context;
	CUresult result = CUDA_SUCCESS;
	if (atomic_load_explicit(&stream->unmarked, memory_order_relaxed))
		result = mark_touched(gate, stream);
	gate_touch_end(gate);
	if (gate_is_sticky(result))
		gate_abandon_context(context);
}

void gate_insert_mark_now(struct gate *gate, struct gate_stream *stream)
{
	uint64_t key = atomic_load(&stream->key);
	if (key != GATE_KEY_EMPTY && key != GATE_KEY_REMOVING)
		gate_insert_mark(gate, stream, key);
}

bool gate_insert_gate(struct gate_stream *stream, uint64_t quantum)
{
	struct gate_context *context = stream->context;
	bool pushed;
	INVARIANT(gate_is_relaxed() && gate_is_mine(context->gate));
	INVARIANT(context->gate->opened == quantum);
	if (!gate_push_context(context, &pushed))
		return false;
	CUresult result = REAL(cuStreamWaitValue64_v2)(stream->handle, context->credit_word, quantum,
	                                               CU_STREAM_WAIT_VALUE_GEQ);
	gate_pop_context(pushed);
	if (gate_is_sticky(result))
		gate_abandon_context(context);
	if (result == CUDA_SUCCESS)
		stream->gated_quantum = quantum;
	return result == CUDA_SUCCESS;
}
