/* Streams, the operations in them, and the threads that run them.
 *
 * The model. A stream is a list of operations in the order in which the program submitted them. They
 * reach the GPU through the hardware queues of their context: CUDA_DEVICE_MAX_CONNECTIONS queues (1 to
 * 32; 8 by default) for copies and as many for everything else. The driver assigns queues to new
 * streams round robin; the legacy stream uses the first. An operation goes to the end of its stream's
 * queue. The driver issues it when it is the first of its queue and nothing blocks it:
 *
 *   - all earlier operations of its stream have ended;
 *   - the event or the value in memory that it waits for is there;
 *   - the order of the legacy stream allows it: an operation in the legacy stream waits for all earlier
 *     operations of the blocking streams, and theirs wait for its earlier ones.
 *
 * Until then everything behind it in its queue waits, whatever stream it belongs to. A program with
 * more streams than queues therefore sees, as on a real GPU, streams that block each other: behind a
 * stream that waits for a value, or for its own last kernel, the kernel of another stream does not
 * start. If only that other kernel would write the value, neither stream ever continues.
 *
 * An operation that was issued blocks its queue no longer: a kernel waits for its GPU (kernels.c), a
 * copy runs, a host function runs in its thread. One worker thread per process does all of this
 * (worker.c); it starts when something cannot be done at once. A second thread, started with the first
 * host function, runs host functions (host_function.c), so that one that waits blocks only its own
 * stream.
 *
 * Times are GPU times. Each stream stores when its last operation ended, and each queue when its last
 * one was issued. A kernel that was ready before the worker noticed starts at the earlier time, but
 * never before the driver saw the value that it waited for.
 *
 * A fault (an illegal access) ends a context: the driver drops all operations that have not begun, and
 * every call on the context returns the fault.
 *
 * Before memory is unmapped, all operations that use it end, in every context: a context may use the
 * memory of another. One that cannot end, because it is behind a wait, faults when its turn comes.
 *
 * Precondition of every function here: the driver's lock is held.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "cuda/memory/memory.h"

enum sim_op_kind {
	SIM_OP_KERNEL,
	SIM_OP_COPY,
	SIM_OP_FILL,
	SIM_OP_HOST,
	SIM_OP_WAIT_VALUE,
	SIM_OP_WRITE_VALUE,
	SIM_OP_RECORD,
	SIM_OP_WAIT_EVENT,
	SIM_OP_EMPTY
};

/* The graph nodes that the next node of a captured stream depends on: see cuda/graph/capture.h. */
struct sim_tips {
	struct sim_node **nodes;
	size_t count;
};

struct sim_event {
	uint32_t flags;
	struct sim_context *context;
	int references;          /* the handle, and operations that refer to it */
	uint64_t recorded, done; /* number of the last record submitted, and executed */
	uint64_t time_ns;
	struct sim_capture *capture; /* of its last record; NULL: it was not captured */
	struct sim_tips tips;        /* of the stream at that record */
};

/* A copy of a kernel's arguments. */
struct sim_arguments {
	size_t count;
	void **pointers; /* into `bytes` */
	char *bytes;
	size_t size;
};

/* What a kernel does when it runs. */
enum sim_action {
	SIM_ACT_NOTHING,
	SIM_ACT_WAIT, /* spins until the value at `address` is at least `value` */
	SIM_ACT_SET,  /* writes `value` to `address` at its end */
	SIM_ACT_FAULT /* makes an illegal access */
};

struct sim_op {
	enum sim_op_kind kind;
	struct sim_stream *stream;
	struct sim_op *next;   /* in its stream */
	struct sim_op *behind; /* in its queue; once issued: in the list of its GPU's kernels */
	uint64_t sequence;     /* in the context */
	uint64_t ready_ns; /* when it was submitted; once issued: when nothing blocked it any more */
	bool issued;
	bool lost;    /* the program has freed memory that it uses: it faults when its turn comes */
	void *staged; /* a copy of the pageable source, made at submission */
	union {
		struct {
			struct sim_function *function;
			unsigned grid[3], block[3], shared;
			uint64_t duration_ns;
			enum sim_action action;
			uint64_t address, value;
			bool seen;                      /* the value that it spins for is there */
			struct sim_arguments arguments; /* in graphs only */
		} kernel;
		CUDA_MEMCPY3D copy;
		CUDA_MEMSET_NODE_PARAMS fill;
		struct {
			CUhostFn function;
			void *data;
			CUstreamCallback callback; /* instead of `function` */
			CUstream stream;
		} host;
		struct {
			uint64_t address, value;
			uint32_t flags;
			bool wide;
		} value;
		struct {
			struct sim_event *event;
			uint64_t number;
		} event;
	};
};

struct sim_stream {
	struct sim_context *context;
	uint32_t flags;
	int priority;
	uint32_t queue; /* in each of the two sets of the context */
	uint64_t id;
	pthread_t thread;            /* of a per-thread stream */
	bool per_thread, live, busy; /* busy: its first operation runs without the lock */
	int waiters;                 /* threads in stream_wait */
	struct sim_op *head, *tail;
	uint64_t submitted, done;    /* sequence of the last operation submitted, and ended */
	uint64_t time_ns;            /* end of the last operation */
	struct sim_capture *capture; /* NULL: it is not captured */
	struct sim_tips tips;
	struct sim_stream *next;
};

/* operation.c */
void event_release(struct sim_event *event); /* drops one reference */
void arguments_free(struct sim_arguments *arguments);
void operation_release(struct sim_op *op); /* frees what it owns, but not the operation */
/* A copy that owns what it refers to; false: out of memory. */
bool operation_copy(struct sim_op *to, const struct sim_op *from);
/* Whether it uses memory of `context` (NULL: of any) in [base, end). */
bool operation_uses(const struct sim_op *op, const struct sim_context *context, uint64_t base,
                    uint64_t end);
/* Frees an operation of a stream; it no longer counts as work of the process. */
void operation_free(struct sim_op *op);
/* The first operation of the stream ended, at that GPU time. */
void stream_finish(struct sim_stream *stream, uint64_t time);

/* stream.c */
CUresult stream_get(CUstream handle, struct sim_stream **stream); /* accepts 0, 1 and 2 too */
struct sim_stream *stream_make(struct sim_context *context, uint32_t flags, int priority);

/* worker.c */
/* Submits an operation; if the stream is captured, adds it to the capture instead. */
CUresult stream_submit(struct sim_stream *stream, const struct sim_op *op);
CUresult stream_enqueue(struct sim_stream *stream, const struct sim_op *op); /* never captures */
bool stream_idle(const struct sim_stream *stream);
/* Wait for everything submitted before the call. They return the context's fault, if it has one. */
CUresult stream_wait(struct sim_stream *stream);
CUresult event_wait(struct sim_event *event); /* for its last record */
CUresult context_wait(struct sim_context *context);
/* Waits for everything that can end, of the context and of what others do with its memory; drops the
 * rest of the context's own. */
void context_drain(struct sim_context *context);
/* Wait for all operations that use memory which the caller is about to free, as far as they can end.
 * Returns the range that starts at `base`; NULL: another thread has freed it meanwhile. */
void memory_wait(uint64_t base, uint64_t size);
struct sim_range *range_wait(uint64_t base);
/* Operations that use the memory fault when their turn comes; one that is at work now ends first. */
void memory_lose(uint64_t base, uint64_t size);

/* queue.c */
void queue_add(struct sim_op *op);
/* Issues the first operation of a queue, and runs what needs no waiting. False: it must wait, or is a
 * copy or fill of more than `bytes`; then *wake is at most the time to call again. If true, the context
 * may have a fault; then the caller must drop its operations. */
bool queue_step(struct sim_queue *queue, uint64_t bytes, uint64_t *wake);
struct sim_queue *queue_of(const struct sim_op *op);
void queue_drop(struct sim_context *context); /* forgets what is in the context's queues */

/* kernels.c */
void kernels_add(struct sim_op *op, uint64_t *wake);
/* True: something changed. *faulted: the context that an illegal access has just ended; it has its
 * fault, and the caller must drop its operations. */
bool kernels_step(uint32_t gpu, uint64_t *wake, struct sim_context **faulted);
bool kernel_spins(const struct sim_op *op);
void kernels_drop(const struct sim_context *context);

/* value.c */
bool value_reached(const struct sim_op *op);
void value_write(const struct sim_op *op);
bool value_writable(uint64_t address, uint64_t size); /* by the GPU */
uint64_t value_pause(uint64_t waited_ns); /* ns until the next look at a value, after that wait */

/* host_function.c */
void host_function_submit(struct sim_stream *stream); /* runs the stream's first operation */

#endif
