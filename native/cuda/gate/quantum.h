/* Quanta: opening, filling and closing them, and learning what launches cost from how long they
 * took.
 *
 * Precondition of all: the calling thread has the gate, and is in the relaxed capture mode. */
#ifndef ALIQUOT_GATE_QUANTUM_H
#define ALIQUOT_GATE_QUANTUM_H

#include "gate/state.h"

/* Count a launch, after all that must be done before it: close the open quantum if the launch does
 * not fit, open the next, insert the stream's gate. */
void quantum_count_launch(struct gate *gate, struct gate_stream *stream,
                          struct gate_launch *launch);

/* Close the open quantum, if there is one: insert the marks, and tell the arbiter. It stays open if
 * the process is too far ahead of its GPU. */
void quantum_close(struct gate *gate);

#endif
