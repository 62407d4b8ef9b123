/* Gates and marks: when this process's work may start on a GPU. credit.h has the contract with the
 * arbiter.
 *
 * THE MODEL
 *
 * The launches of a process on a slice are cut into quanta. Before a stream's first launch in a
 * quantum we insert a gate into the stream: the GPU waits there for credit. When we close the
 * quantum, we insert a mark into every stream used in it: the GPU writes the mark when it gets
 * there. The program's threads never wait for credit: they run ahead as they would without us.
 *
 * Fast path (gate_fast_path, some nanoseconds): the stream has its gate for the open quantum, and
 * the launch's expected cost (cost.h) fits into the quantum. The launch is only counted.
 *
 * Slow path (gate_before): close the quantum, open the next, insert a gate.
 *
 * A quantum is closed
 *   - by a launch that would make it too long, or that must be alone in its quantum to be measured;
 *   - while processes take turns also right after a launch that fills it or is alone in it, by the
 *     calls in which a program waits (gate_close_before_wait), and by the next launch when the
 *     arbiter says YIELD;
 *   - by the beginning of a capture, and by the destruction of a stream or context that it used.
 *
 * THE LAYERS: each file calls only files further down.
 *
 *     launches            what happens before and after a launch
 *     lifecycle           contexts that are created, destroyed or broken
 *     captures            streams that begin or join a capture
 *     drain               waiting for all work of the process
 *     selftest            whether gates work in a context
 *     close               closing quanta, and marking streams, because of other calls
 *     quantum             opening, filling and closing a quantum; learning what launches cost
 *     insert              putting gates and marks into streams
 *     streams             the table of streams, and which thread touches which
 *     contexts            the table of contexts; taking a gate
 *     marks, pages        mark words; a context's mappings of the pages
 *     base                locks, clock, capture mode, current context
 *     state.h, count.h    the data, and counting without a lock
 *
 * INVARIANTS: INVARIANT (invariant.h) checks those marked * in sanitizer builds.
 *
 * `taken`, one per gate.
 *   * One thread holds it, no thread takes it twice, and no thread holds two gates.
 *   * The holder alone opens and closes quanta, inserts gates and marks, assigns mark words, and
 *     writes the gate's fields "for the holder".
 *   - The holder cannot be cancelled (pthread_cancel).
 *   - The holder may be blocked inside the driver for as long as the GPU has no credit, because a
 *     queue of the driver is full. So nobody waits for `taken` without a limit: a launch waits 20
 *     ms, or 100 ms while processes take turns; then it goes on without a gate.
 *
 * `lock`, one for all gates.
 *   - It is held for nanoseconds, and protects which stream or context a slot belongs to.
 *   * No thread calls the driver, waits, or takes a gate while it has `lock`. A holder of `taken`
 *     may take `lock`.
 *
 * A slot's `key`.
 *   * EMPTY -> key and key -> REMOVING are written under `lock` (a context's legacy slot: by
 *     the thread that creates or destroys the context). The thread that wrote REMOVING owns the slot, and alone
 *     writes EMPTY or the next key.
 *
 * `touching`, one per gate: the slot whose stream the holder is about to use in the driver.
 *   * Only the holder writes it, and it is NULL whenever nobody holds the gate.
 *   - The holder writes `touching`, then reads the key. A remover writes the key, then reads
 *     `touching` and waits until it is another. Both in sequentially consistent order, so one of
 *     the two sees the other. Hence while gate_touch has returned true, the driver is not asked to
 *     destroy that stream or its context, nor to begin a capture in it.
 *   - The same holds for the legacy stream with `captures_beginning` in place of the key: to touch
 *     it would break the capture of a blocking stream that is just beginning.
 *   * No thread removes the stream that it touches itself: it would wait for ever.
 *   - Inserting a gate needs no `touching`: the program is about to launch into that stream, so it
 *     does not destroy it.
 *
 * `unmarked`, `overtaken`, and the legacy default stream. Work in the legacy stream waits for
 * earlier work in the context's blocking streams, and the other way round. A mark inserted into it
 * late would be a barrier that the program does not have. So its mark goes in before anything else
 * is put into another blocking stream.
 *   - `unmarked` is set by the holder, when a launch is let into the stream, and cleared by the
 *     holder with the mark, or by the thread that removes the stream.
 *   * `overtaken` is set only on a legacy stream that is `unmarked`, by a thread that puts work
 *     into a stream of the context and could not take the gate. While it is set, no mark goes in:
 *     the quantum ends without one. The holder clears it with the next launch into the legacy
 *     stream.
 *
 * Quanta.
 *   * open_quantum is 0 or `opened`; done <= closed <= opened; a quantum is opened only when closed
 *     == opened. So all marks of a quantum are in their streams before a gate of the next one is.
 *   - The counters of the fast path are written by all threads without a lock: they are estimates.
 *
 * What the program must not notice.
 *   - Captures. We ask whether a stream captures before we do anything with it. If it does, or the
 *     driver does not say, it gets no gate and no mark. A stream that begins or joins a capture is
 *     removed first (captures.c).
 *   * Every call that puts something into a stream is made in the relaxed capture mode, in which it
 *     cannot break another thread's capture.
 *   - Errors. A gate or mark that the driver refuses is left out, and errno stays as it was.
 *   - Forks. A child finds all of this wiped: its calls go straight to the driver.
 *
 * The per-thread default stream has no handle in other threads, so only its own thread can insert
 * its mark. If another thread closes the quantum, it leaves that mark out; from then on the stream
 * gets a mark after each launch while processes take turns (`mark_each_launch`).
 */
#ifndef ALIQUOT_GATE_H
#define ALIQUOT_GATE_H

#include "gate/count.h"
#include "gate/state.h"
#include "hooked.h"

/* Set up the gates. Precondition: the session is open. */
void gates_start(void);

/* --- launches (launches.c) -------------------------------------------------------------------- */

/* The slow path of a launch, before it and after it. gate_after returns `result`, the launch's. */
void gate_before(struct gate_launch *launch);
CUresult gate_after(const struct gate_launch *launch, CUresult result);

/* An executable graph was destroyed: forget its cost. */
void gate_forget_key(uint64_t key);

/* --- other calls (close.c) -------------------------------------------------------------------- */

/* The program is about to wait: while processes take turns, close the open quanta. */
void gate_close_before_wait(void);
/* Close the open quanta in any case. */
void gate_close_all(void);
/* Something other than a launch is about to be put into a stream: insert the legacy streams' marks.
 */
void gate_mark_legacy_streams(void);
/* The program made a blocking stream (one without CU_STREAM_NON_BLOCKING). */
void gate_blocking_stream_created(void);
/* The program is about to destroy a stream: insert its mark, and remove it from the table. */
void gate_stream_ending(CUstream stream);

/* --- captures (captures.c) -------------------------------------------------------------------- */

/* A stream is about to begin a capture: gate_capture_begun must follow, with the driver's answer.
 * The context may be NULL. */
struct gate_context *gate_capture_beginning(CUstream stream, bool per_thread);
void gate_capture_begun(struct gate_context *context, CUresult result);
/* The driver ended a capture with this result. */
void gate_capture_ended(CUresult result);
/* A stream is about to wait for an event, and may join a capture by that. */
void gate_stream_joining(CUstream stream, bool per_thread);

/* --- all work (drain.c) ------------------------------------------------------------------------ */

/* Whether a stream captures, as far as we know. */
bool gates_have_captures(void);
/* Wait until the GPU has done all work of this process. Precondition: no stream captures, and the program
 * does not begin a capture; the calling thread is in the relaxed capture mode. */
void gates_drain(void);
/* Make one of the process's contexts current for the calling thread, if there is one; gates_return_context must
 * follow. Precondition: the program destroys no context meanwhile. */
void gates_borrow_context(void);
void gates_return_context(void);

/* --- contexts (lifecycle.c) ------------------------------------------------------------------- */

/* The program created a context. CUDA_ERROR_NOT_SUPPORTED: gates do not work in it, its slice's
 * policy is `hard`, and stderr has the reason. */
CUresult gate_context_created(CUcontext context, CUdevice device);
/* The driver is about to destroy a context. gate_context_ended must follow: it has, or has not. */
void gate_context_ending(CUcontext context);
void gate_context_ended(CUcontext context, bool is_gone);
/* There may be a context that the program created by a call that we do not hook. */
void gate_unknown_context(void);
/* A call failed. If the error is sticky, the current context is no longer gated. */
void gate_call_failed(CUresult result);

/* --- the fast path ---------------------------------------------------------------------------- */

/* Count a launch and return true if it needs nothing else: nearly always. False also for a default
 * stream while there are several contexts: gate_before finds out whose it is. */
ALWAYS_INLINE bool gate_fast_path(CUstream stream, bool per_thread, uint64_t key, bool is_graph)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	if (!all)
		return false;
	struct gate_stream *slot = gate_is_default(stream)
	                               ? gate_find_default(all,
	                                                   atomic_load_explicit(&all->only_context,
	                                                                        memory_order_acquire),
	                                                   stream, per_thread)
	                               : gate_find_stream(all, (uint64_t)(uintptr_t)stream);
	return gate_fast_path_at(slot, key, is_graph);
}

/* The body of a hook for a launch; `call` is the driver's. */
#define GATED(launch_stream, launch_per_thread, launch_key, launch_is_graph, call)                 \
	do {                                                                                           \
		uint64_t gated_key = (launch_key);                                                         \
		if (__builtin_expect(gate_fast_path(launch_stream, launch_per_thread, gated_key,           \
		                                    launch_is_graph),                                      \
		                     1))                                                                   \
			return call;                                                                           \
		struct gate_launch gated = {.stream = (launch_stream),                                     \
		                            .key = gated_key,                                              \
		                            .per_thread = (launch_per_thread),                             \
		                            .is_graph = (launch_is_graph)};                                \
		gate_before(&gated);                                                                       \
		return gate_after(&gated, call);                                                           \
	} while (0)

#endif
