/* Gates and marks: when this process's work may start on a GPU. credit.h has the contract.
 *
 * The model. What a process launches on a slice is cut into quanta. Before a stream's first launch in
 * a quantum a gate goes into the stream, where the GPU waits for credit; when the quantum is closed a
 * mark goes into every stream used in it, which the GPU writes when it has come so far. The program's
 * threads never wait for credit: they run ahead as they would without us.
 *
 * A launch whose stream has its gate for the open quantum, and whose expected cost (cost.h) fits into
 * what is left of it, needs nothing but to be counted: that is gate_is_free, some nanoseconds. All
 * else goes the long way, gate_before: close, open, gate. A quantum is closed
 *   - by the launch that would make it too long, or that must stand alone to be measured,
 *   - while turns are taken also right after a launch that stands alone or fills it, by the calls in
 *     which a program stops to wait (gate_closing), and by the next launch when the arbiter says YIELD,
 *   - by the beginning of a capture, and the end of a stream or a context that it used.
 *
 * What a program must not notice:
 *   - A capture. Whether a stream captures is asked before anything else is done with it; one that
 *     does, or about which the driver will not say, gets no gate and no mark, and one that begins or
 *     joins a capture is in nobody's hands by then (capture.c). Our calls are made in the relaxed
 *     mode, so that they never spoil a capture.
 *   - The legacy default stream. Work in it waits for the earlier work of the context's blocking
 *     streams, and theirs for it; a mark put into it later would be a barrier that the program does
 *     not have. Its mark therefore follows its last launch: it goes in before anything is asked of
 *     another blocking stream (gate_beside). It then owes no more, and needs no second gate in the
 *     same quantum.
 *   - Errors. Ours are swallowed: a gate or a mark that the driver refuses is left out.
 *   - Threads. Whoever has the lock of a gate may stand in the driver for as long as the GPU has no
 *     credit, because its queue is full. So the lock is only tried, by launches for 20 ms, or for
 *     100 ms while turns are taken; who does not get it goes on without a gate.
 *
 * The per-thread default stream has no name in another thread, so its mark can be put in only by its
 * own. Where another thread closes the quantum, it does without; from then on such a stream is marked
 * after each of its launches while turns are taken.
 *
 * A forked child finds all of this wiped: its calls go straight to the driver.
 */
#ifndef ALIQUOT_GATE_H
#define ALIQUOT_GATE_H

#include "gate_state.h"
#include "hooked.h"

/* What is launched, and how: made by a hook, for gate_before and gate_after. */
struct gate_launch {
	CUstream stream;
	uint64_t key;    /* cost_key */
	bool per_thread; /* the default stream is the calling thread's */
	bool is_graph;   /* its cost must be known before it shares a quantum */
	/* what gate_before found */
	struct gate *gate;
	struct gate_stream *at_once; /* gets its mark right after the launch */
};

/* With the session open. */
void gates_start(void);

/* The long way to a launch, and what is left to do after it; the result is the launch's. */
void gate_before(struct gate_launch *launch);
CUresult gate_after(const struct gate_launch *launch, CUresult result);

/* The program is about to wait: close what is open, while turns are taken. */
void gate_closing(void);
/* Close what is open in any case. */
void gate_closing_always(void);
/* Something other than a launch is about to be put into a stream. */
void gate_beside(void);
/* A call failed; if that broke the current context, nothing in it will ever be done. */
void gate_failed(CUresult result);

/* There is a context that we did not see made. */
void gate_other_contexts(void);
/* A stream that is not CU_STREAM_NON_BLOCKING was made. */
void gate_blocking_stream(void);
/* An executable graph is gone. */
void gate_forget_key(uint64_t key);

/* A context was made. CUDA_ERROR_NOT_SUPPORTED: its slice is `hard`, there can be no gates, and that
 * was said on stderr. */
CUresult gate_context_made(CUcontext context, CUdevice device);
/* The driver is about to end a context; it has, or has not. */
void gate_context_ending(CUcontext context);
void gate_context_ended(CUcontext context, bool gone);

/* Count a launch into a stream at this place and say that it needs nothing more; NULL: it has none. */
ALWAYS_INLINE bool gate_is_free_at(struct gate_stream *place, uint64_t key, bool is_graph)
{
	if (!place)
		return false;
	struct gate *gate = atomic_load_explicit(&place->gate, memory_order_relaxed);
	if (!gate)
		return true;
	uint64_t open = atomic_load_explicit(&gate->open, memory_order_relaxed);
	if (open == 0 || atomic_load_explicit(&place->free, memory_order_relaxed) != open ||
	    gate_must_mark_beside(place))
		return false;
	return gate_count_free(gate, open, key, is_graph);
}

/* The way of nearly all launches. With no call on it, so that their arguments stay where they are:
 * where a default stream may be one of several contexts', gate_before looks. */
ALWAYS_INLINE bool gate_is_free(CUstream stream, bool per_thread, uint64_t key, bool is_graph)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	if (!all)
		return false;
	struct gate_stream *place = gate_is_default(stream)
	                                ? gate_find_default(all,
	                                                    atomic_load_explicit(&all->only,
	                                                                         memory_order_acquire),
	                                                    stream, per_thread)
	                                : gate_find_key(all, (uint64_t)(uintptr_t)stream);
	return gate_is_free_at(place, key, is_graph);
}

/* A hook's body: `call` is the driver's. */
#define GATED(launch_stream, launch_per_thread, launch_key, launch_is_graph, call)                 \
	do {                                                                                           \
		uint64_t gated_key = (launch_key);                                                         \
		if (__builtin_expect(gate_is_free(launch_stream, launch_per_thread, gated_key,             \
		                                  launch_is_graph),                                        \
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
