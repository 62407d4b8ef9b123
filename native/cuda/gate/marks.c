#include "gate/marks.h"

#include "gate/base.h"

static uint16_t number_of(const struct gates *all, const struct gate_context *context)
{
	return (uint16_t)(context - all->contexts + 1);
}

/* The lowest word that no stream has and whose marks are all written: the arbiter reads all words
 * up to the highest ever used. */
bool gate_mark_word_assign(struct gate *gate, struct gate_stream *stream)
{
	struct aliquot_work_slice *work = gate->work;
	INVARIANT(gate_is_mine(gate));
	for (uint32_t i = 0; stream->mark_word == GATE_NO_MARK_WORD && i < GATE_TRIAL_WORD; i++) {
		struct aliquot_mark *word = &work->marks[i];
		if (atomic_load_explicit(&gate->mark_owners[i].is_held, memory_order_acquire) ||
		    atomic_load_explicit(&word->done, memory_order_relaxed) !=
		        atomic_load_explicit(&word->asked, memory_order_relaxed))
			continue;
		atomic_store_explicit(&gate->mark_owners[i].is_held, true, memory_order_relaxed);
		gate->mark_owners[i].context = number_of(atomic_load(&gates_page), stream->context);
		stream->mark_word = i;
		if (i >= atomic_load_explicit(&work->marks_end, memory_order_relaxed))
			atomic_store_explicit(&work->marks_end, i + 1, memory_order_release);
	}
	return stream->mark_word != GATE_NO_MARK_WORD;
}

void gate_mark_word_return(struct gate *gate, struct gate_stream *stream)
{
	if (gate && stream->mark_word != GATE_NO_MARK_WORD)
		atomic_store_explicit(&gate->mark_owners[stream->mark_word].is_held, false,
		                      memory_order_release);
	stream->mark_word = GATE_NO_MARK_WORD;
}

void gate_marks_complete(struct gates *all, struct gate_context *context)
{
	struct gate *gate = context->gate;
	uint16_t number = number_of(all, context);
	INVARIANT(gate_is_mine(gate));
	for (uint32_t i = 0; i < atomic_load(&gate->work->marks_end) && i < ALIQUOT_MARKS; i++) {
		struct aliquot_mark *word = &gate->work->marks[i];
		if (gate->mark_owners[i].context != number)
			continue;
		atomic_store(&word->done, atomic_load(&word->asked));
		gate->mark_owners[i].context = 0;
	}
}
