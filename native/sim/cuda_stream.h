/* Streams, the operations in them, and the thread that carries them out.
 *
 * The model. A stream is a list of operations in the order they were asked for. They reach the GPU
 * through the hardware queues of their context: CUDA_DEVICE_MAX_CONNECTIONS of them (1 to 32; 8)
 * for copies and as many for everything else. A new stream is given the next queue, round robin;
 * the legacy stream has the first. An operation goes to the end of its stream's queue and is issued
 * when it is at its head and nothing holds it: what was asked of its stream before has ended; the
 * event or the word it waits for is there; the legacy stream's order (it waits for all earlier
 * operations of the blocking streams, and they for its earlier ones). Until then everything behind
 * it in its queue waits, of whatever stream.
 *
 * So a program with more streams than queues sees, as on a card, streams that hold each other up:
 * behind one that waits for a word, or for its own last kernel's end, another one's kernel does not
 * start. If only that one could write the word, neither ever goes on.
 *
 * Once issued an operation no longer stands in the way: a kernel is its GPU's (cuda_kernels.c), a
 * copy runs, a host function is its thread's. One worker thread per process, started when something
 * cannot be done at once, carries all this out; a second one, started at the first host function,
 * runs those, so that a host function that waits holds up its own stream only.
 *
 * Times are the GPU's. Each stream keeps the time at which its last operation ended, and each queue
 * that at which its last one was issued: a kernel that was ready earlier than the worker saw it
 * starts at the earlier time, but never before a word that it waited for was seen.
 *
 * A fault (an illegal access) ends a context: what was asked of it and had not begun is dropped,
 * and every call on it answers with the fault.
 *
 * Precondition of every function here: the driver's lock is held.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "sim.h"

enum sim_op_kind {
	SIM_OP_KERNEL,
	SIM_OP_COPY,
	SIM_OP_SET,
	SIM_OP_HOST,
	SIM_OP_WAIT_VALUE,
	SIM_OP_WRITE_VALUE,
	SIM_OP_RECORD,
	SIM_OP_WAIT_EVENT,
	SIM_OP_EMPTY
};

/* Nodes of a graph that what comes next depends on. */
struct sim_tips {
	struct sim_node **nodes;
	size_t count;
};

struct sim_event {
	uint32_t flags;
	struct sim_context *context;
	int references;          /* the handle, and operations that name it */
	uint64_t recorded, done; /* number of the last record asked for, and carried out */
	uint64_t time_ns;
	struct sim_capture *capture; /* the one it was last recorded in; NULL: none */
	struct sim_tips tips;        /* where */
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
	SIM_ACT_WAIT, /* spins until the word at `address` is at least `value` */
	SIM_ACT_SET,  /* writes the word at its end */
	SIM_ACT_FAULT /* makes an illegal access */
};

struct sim_op {
	enum sim_op_kind kind;
	struct sim_stream *stream;
	struct sim_op *next;   /* in its stream */
	struct sim_op *behind; /* in its queue; then among its GPU's kernels */
	uint64_t sequence;     /* in the context */
	uint64_t ready_ns;     /* when it was asked for; once issued: when nothing held it any more */
	bool issued;
	void *staged; /* pageable memory that was read when the copy was asked for */
	union {
		struct {
			struct sim_function *function;
			unsigned grid[3], block[3], shared;
			uint64_t duration_ns;
			enum sim_action action;
			uint64_t address, value;
			bool seen;                      /* the word that it spins for */
			struct sim_arguments arguments; /* in graphs only */
		} kernel;
		CUDA_MEMCPY3D copy;
		CUDA_MEMSET_NODE_PARAMS set;
		struct {
			CUhostFn function;
			void *data;
			CUstreamCallback callback; /* instead of function */
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
	uint32_t queue; /* of each set */
	uint64_t id;
	pthread_t thread;            /* of a per-thread stream */
	bool per_thread, live, busy; /* busy: its head runs with the lock given up */
	int waiters;                 /* threads that wait for it */
	struct sim_op *head, *tail;
	uint64_t asked, done;        /* sequence of the last operation asked for, and carried out */
	uint64_t time_ns;            /* end of the last operation */
	struct sim_capture *capture; /* NULL: it is not being captured */
	struct sim_tips tips;
	struct sim_stream *next;
};

/* cuda_stream.c */
CUresult stream_get(CUstream handle, struct sim_stream **stream); /* 0, 1 and 2 included */
struct sim_stream *stream_make(struct sim_context *context, uint32_t flags, int priority);
void stream_end_context(struct sim_context *context);

/* cuda_worker.c */
CUresult stream_ask(struct sim_stream *stream, const struct sim_op *op); /* or captures it */
CUresult stream_queue(struct sim_stream *stream, const struct sim_op *op);
bool stream_idle(const struct sim_stream *stream);
void stream_finish(struct sim_stream *stream, uint64_t time); /* its head ended, at that GPU time */
void thread_start(void *(*body)(void *));                     /* with all signals blocked */
/* Waits, for all that was asked for so far; they end with the context's fault if it has one. */
CUresult stream_wait(struct sim_stream *stream);
CUresult event_wait(struct sim_event *event); /* for its last record */
CUresult context_wait(struct sim_context *context);
void context_drain(struct sim_context *context); /* what can end ends; the rest is forgotten */
void context_fail(struct sim_context *context, CUresult fault);

/* cuda_queue.c */
void queue_add(struct sim_op *op);
/* Issues the first operation of a queue and does what can be done at once; false: it has to wait,
 * or is a copy or fill of more than `bytes`. *wake: when to look again at the latest. */
bool queue_step(struct sim_queue *queue, uint64_t bytes, uint64_t *wake);
struct sim_queue *queue_of(const struct sim_op *op);
void queue_forget(struct sim_context *context);

/* cuda_kernels.c */
void kernels_add(struct sim_op *op, uint64_t *wake);
bool kernels_step(uint32_t gpu, uint64_t *wake); /* true: something changed */
bool kernel_spins(const struct sim_op *op);
void kernels_forget(const struct sim_context *context);

/* cuda_value.c */
bool value_reached(const struct sim_op *op);
void value_write(const struct sim_op *op);
bool value_writable(uint64_t address, uint64_t size); /* by the GPU */
uint64_t value_pause(uint64_t waited_ns); /* until the next look at a word waited for so long */

/* cuda_hostfn.c */
void host_ask(struct sim_stream *stream); /* has its head run by the host thread */

/* cuda_event.c */
void event_release(struct sim_event *event);

/* cuda_copy.c */
void copy_run(const CUDA_MEMCPY3D *copy);
void set_run(const CUDA_MEMSET_NODE_PARAMS *set);

/* cuda_capture.c */
CUresult capture_add(struct sim_capture *capture, struct sim_stream *stream,
                     const struct sim_op *op);
CUresult capture_refuses_legacy(const struct sim_stream *stream);
CUresult capture_refuses_sync(const struct sim_stream *stream); /* a call that would wait */
CUresult capture_unsafe(void); /* a call that a capture in this thread's mode forbids */
void capture_abandon(struct sim_stream *stream);
void capture_forget_event(struct sim_event *event);

#endif
