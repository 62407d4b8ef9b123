/* Streams, the operations in them, and the thread that carries them out.
 *
 * The model. A stream is a queue of operations. An operation at the head runs when what it depends
 * on is done: the legacy stream waits for all earlier operations of the blocking streams of its
 * context and they for its earlier ones; a wait waits for its event or its word in memory. Kernels
 * go to the GPU's engine (engine.h), one of each process at a time. One worker thread per process,
 * started when something cannot be done at once, carries the queues out; a second one, started at
 * the first host function, runs those, so that a host function that waits holds up its own stream
 * only.
 *
 * Each stream keeps the time at which its last operation ended, in GPU time: a kernel that was
 * ready earlier than the worker saw it starts at the earlier time.
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

struct sim_op {
	enum sim_op_kind kind;
	struct sim_op *next;
	uint64_t sequence; /* in the context */
	uint64_t ready_ns; /* when it was asked for */
	bool submitted;    /* to the engine or the host thread */
	void *staged;      /* pageable memory that was read when the copy was asked for */
	union {
		struct {
			struct sim_function *function;
			unsigned grid[3], block[3], shared;
			uint64_t duration_ns;
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
	uint64_t id;
	pthread_t thread;            /* of a per-thread stream */
	bool per_thread, live, busy; /* busy: its head runs with the lock given up */
	int waiters;                 /* threads that wait for it */
	struct sim_op *head, *tail;
	uint64_t asked, done;        /* sequence of the last operation asked for, and carried out */
	uint64_t time_ns;            /* end of the last operation */
	uint64_t waiting_ns;         /* since when its head waits for a word; 0: it does not */
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
void stream_wait(struct sim_stream *stream); /* for all it was asked so far */
void event_wait(struct sim_event *event);    /* for its last record */
void context_wait(struct sim_context *context);
void context_drain(struct sim_context *context); /* what can end ends; the rest is forgotten */
void stream_finish(struct sim_stream *stream, uint64_t time); /* its head ended, at that GPU time */
void thread_start(void *(*body)(void *));                     /* with all signals blocked */

/* cuda_value.c */
bool value_reached(const struct sim_op *op);
void value_write(const struct sim_op *op);
uint64_t value_pause(uint64_t waited_ns); /* until the next look at a word waited for so long */

/* cuda_hostfn.c */
void host_ask(
	struct sim_stream *stream); /* has its head run by the host thread, if not yet asked */

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
