/* Putting gates and marks into streams.
 *
 * Precondition of all: the calling thread has the gate, and is in the relaxed capture mode. */
#ifndef ALIQUOT_GATE_INSERT_H
#define ALIQUOT_GATE_INSERT_H

#include "gate/state.h"

/* Insert a gate for this quantum; false: the driver refused. Precondition: the program is about to
 * launch into the stream, and the stream does not capture. */
bool gate_insert_gate(struct gate_stream *stream, uint64_t quantum);

/* Insert a mark into a stream that is `unmarked`, if its slot still has this key, and the mark
 * would be no barrier and break no capture. */
void gate_insert_mark(struct gate *gate, struct gate_stream *stream, uint64_t key);
/* The same for whichever stream has the slot now. */
void gate_insert_mark_now(struct gate *gate, struct gate_stream *stream);

#endif
