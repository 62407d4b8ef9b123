/* Mark words: which stream writes which word of the work page (credit.h: struct aliquot_mark).
 *
 * Precondition of all but gate_mark_word_return: the calling thread has the gate. */
#ifndef ALIQUOT_GATE_MARKS_H
#define ALIQUOT_GATE_MARKS_H

#include "gate/state.h"

/* Give the stream a mark word, unless it has one; false: there is none. */
bool gate_mark_word_assign(struct gate *gate, struct gate_stream *stream);

/* Take the stream's mark word away; it is assigned again once its last mark has been written. For
 * the thread that owns the stream's slot. `gate` may be NULL: then the stream has none. */
void gate_mark_word_return(struct gate *gate, struct gate_stream *stream);

/* The context will write no more marks: count those that it has not written as written, so that
 * nobody waits for them. */
void gate_marks_complete(struct gates *all, struct gate_context *context);

#endif
