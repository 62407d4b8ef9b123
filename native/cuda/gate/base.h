/* The bottom layer of the gates: their memory, the locks, the clock, the thread's capture mode and
 * its current context. It calls the session and the driver, and nothing else of the gates. */
#ifndef ALIQUOT_GATE_BASE_H
#define ALIQUOT_GATE_BASE_H

#include "gate/invariant.h"
#include "gate/state.h"

/* The gates; NULL: there are none, as before cuInit or in a forked child. */
struct gates *gates_here(void);

/* CLOCK_MONOTONIC. */
uint64_t gate_now_ns(void);

/* The lock over both tables. Hold it for nanoseconds; make no driver call while you have it. */
void gates_lock(struct gates *all);
void gates_unlock(struct gates *all);

/* Set or clear `taken`. Only gate_take and gate_give (contexts.h) call these. False: another thread
 * kept the gate for longer than `patience_ns`. */
bool gate_lock(struct gate *gate, uint64_t patience_ns);
void gate_unlock(struct gate *gate);
/* Whether the calling thread has the gate. In release builds: whether any thread has. */
bool gate_is_mine(const struct gate *gate);

/* Put the calling thread into the capture mode in which its calls break no capture; returns the
 * mode it was in, for gate_restore_capture_mode. Calls may nest. */
CUstreamCaptureMode gate_relax_capture_mode(void);
void gate_restore_capture_mode(CUstreamCaptureMode mode);
/* Whether the calling thread is in that mode; in release builds always true. */
bool gate_is_relaxed(void);

/* Whether a stream captures. True also if the driver does not say. */
bool gate_is_capturing(CUstream stream);

/* Make a context current, unless it is; gate_pop_context with *pushed must follow. False: the
 * driver refused. */
bool gate_push_context(const struct gate_context *context, bool *pushed);
void gate_pop_context(bool pushed);

/* Whether this error is sticky: the context will never do anything again. */
bool gate_is_sticky(CUresult result);

#endif
