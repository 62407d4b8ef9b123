/* The table of streams, and which thread touches which. gate.h says what `touching` guarantees. */
#ifndef ALIQUOT_GATE_STREAMS_H
#define ALIQUOT_GATE_STREAMS_H

#include "gate/state.h"

/* Say that the holder of the gate is about to use the stream with this key in the driver;
 * gate_touch_end must follow. False: the slot belongs to another stream by now, or must not be
 * touched. Precondition: the gate is taken. */
bool gate_touch(struct gate *gate, struct gate_stream *slot, uint64_t key);
void gate_touch_end(struct gate *gate);
/* Wait until no thread touches the slot. `gate` may be NULL. */
void gate_wait_untouched(struct gate *gate, const struct gate_stream *slot);

/* The stream's slot, added if it has none; NULL: there is no free slot. Precondition: the gate is
 * taken. */
struct gate_stream *gate_stream_slot(struct gate *gate, struct gate_context *context,
                                     CUstream stream, bool per_thread);
/* Add a stream of a context that is not gated: its launches take the fast path from now on. */
void gate_add_plain_stream(struct gate_context *context, CUstream stream, bool per_thread);

/* Remove a stream, or all streams of a context but the legacy one. Nobody touches them afterwards.
 */
void gate_remove_stream(struct gates *all, uint64_t key);
void gate_remove_streams(struct gates *all, struct gate_context *context);

/* Set up a context's legacy stream (`gate` NULL: not gated), or remove it. */
void gate_add_legacy_stream(struct gate_context *context, struct gate *gate);
void gate_remove_legacy_stream(struct gate_context *context);

/* A sticky error has broken the context: stop gating it, and count its marks as written.
 * Precondition: its gate is taken. */
void gate_abandon_context(struct gate_context *context);

#endif
