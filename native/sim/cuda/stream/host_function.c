/* The thread that runs host functions and callbacks, one after the other.
 *
 * It is not the worker: a host function that waits blocks its own stream, but not the GPU.
 */
#include "cuda/stream/stream.h"
#include "cuda/stream/threads.h"

static pthread_cond_t calls = PTHREAD_COND_INITIALIZER;

static struct sim_op *first, **last = &first; /* waiting operations, linked by `behind` */

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
	stream_finish(stream, machine_now());
}

static void *host_thread(void *unused)
{
	pthread_mutex_lock(&sim.lock);
	for (;;) {
		struct sim_op *op = first;
		if (!op) {
			pthread_cond_wait(&calls, &sim.lock);
			continue;
		}
		first = op->behind;
		if (!first)
			last = &first;
		run(op->stream);
	}
	return unused;
}

void host_function_submit(struct sim_stream *stream)
{
	static bool started;
	*last = stream->head;
	last = &stream->head->behind;
	if (!started)
		threads_start(host_thread);
	started = true;
	pthread_cond_signal(&calls);
}
