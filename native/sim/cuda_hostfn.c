/* The thread that runs host functions and callbacks, one after the other.
 *
 * It is another than the worker: a host function that waits holds up its own stream, not the GPU.
 */
#include "cuda_stream.h"

#include <stdlib.h>

static pthread_cond_t calls = PTHREAD_COND_INITIALIZER;

/* A stream whose head is a host function. */
static struct call {
	struct sim_stream *stream;
	struct call *next;
} *first, **last = &first;

static void run(struct sim_stream *stream)
{
	struct sim_op op = *stream->head;
	stream->busy = true;
	pthread_mutex_unlock(&sim.lock);
	if (op.host.callback)
		op.host.callback(op.host.stream, CUDA_SUCCESS, op.host.data);
	else
		op.host.function(op.host.data);
	pthread_mutex_lock(&sim.lock);
	stream->busy = false;
	stream_finish(stream, engine_now());
}

static void *host_thread(void *unused)
{
	pthread_mutex_lock(&sim.lock);
	for (;;) {
		struct call *call = first;
		if (!call) {
			pthread_cond_wait(&calls, &sim.lock);
			continue;
		}
		first = call->next;
		if (!first)
			last = &first;
		run(call->stream);
		free(call);
	}
	return unused;
}

void host_ask(struct sim_stream *stream)
{
	static bool started;
	struct call *call = stream->head->submitted ? NULL : malloc(sizeof(*call));
	if (!call)
		return;
	stream->head->submitted = true;
	*call = (struct call){stream, NULL};
	*last = call;
	last = &call->next;
	if (!started)
		thread_start(host_thread);
	started = true;
	pthread_cond_signal(&calls);
}
