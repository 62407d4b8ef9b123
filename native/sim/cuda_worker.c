/* Carries out the streams' queues. See cuda_stream.h. */
#include "cuda_stream.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define NEVER UINT64_MAX
#define AT_ONCE (64u << 10) /* copies up to here need no other thread */

static pthread_cond_t work;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool started;
static struct sim_stream *at_engine[SIM_MAX_GPUS]; /* whose kernel each GPU's engine has */

bool stream_idle(const struct sim_stream *stream)
{
	return !stream->head;
}

/* Whether a stream whose work must end before `op` of another still has some of it. */
static bool earlier_work(const struct sim_stream *other, const struct sim_op *op)
{
	return other->head && other->head->sequence < op->sequence;
}

static bool ordered(const struct sim_stream *stream)
{
	struct sim_context *context = stream->context;
	if (stream->flags & CU_STREAM_NON_BLOCKING)
		return true;
	if (stream != context->legacy)
		return !earlier_work(context->legacy, stream->head);
	for (const struct sim_stream *s = context->streams; s; s = s->next)
		if (s != stream && !(s->flags & CU_STREAM_NON_BLOCKING) && earlier_work(s, stream->head))
			return false;
	return true;
}

static void op_free(struct sim_op *op)
{
	if (op->kind == SIM_OP_RECORD || op->kind == SIM_OP_WAIT_EVENT)
		event_release(op->event.event);
	free(op->staged);
	free(op);
}

void stream_finish(struct sim_stream *stream, uint64_t time)
{
	struct sim_op *op = stream->head;
	if (time > stream->time_ns)
		stream->time_ns = time;
	stream->done = op->sequence;
	stream->head = op->next;
	if (!stream->head)
		stream->tail = NULL;
	stream->waiting_ns = 0;
	op_free(op);
	pthread_cond_broadcast(&changed);
	if (started)
		pthread_cond_signal(&work);
}

static uint64_t ready_time(const struct sim_stream *stream)
{
	const struct sim_stream *legacy = stream->context->legacy;
	uint64_t time = stream->head->ready_ns;
	if (stream->time_ns > time)
		time = stream->time_ns;
	if (!(stream->flags & CU_STREAM_NON_BLOCKING) && legacy->time_ns > time)
		time = legacy->time_ns;
	return time;
}

/* Copies and fills run with the lock given up; the stream is marked, so that nobody else takes
 * it. */
static void run_unlocked(struct sim_stream *stream)
{
	struct sim_op *op = stream->head;
	stream->busy = true;
	pthread_mutex_unlock(&sim.lock);
	if (op->kind == SIM_OP_COPY)
		copy_run(&op->copy);
	else
		set_run(&op->set);
	pthread_mutex_lock(&sim.lock);
	stream->busy = false;
	stream_finish(stream, engine_now());
}

static bool step_kernel(struct sim_stream *stream, uint64_t *wake)
{
	struct sim_op *op = stream->head;
	uint32_t gpu = stream->context->gpu;
	uint64_t when;
	if (!op->submitted) {
		if (at_engine[gpu])
			return false;
		at_engine[gpu] = stream;
		op->submitted = true;
		engine_submit(&sim.machine, gpu, ready_time(stream), op->kernel.duration_ns);
	}
	if (engine_poll(&sim.machine, gpu, &when)) {
		at_engine[gpu] = NULL;
		stream_finish(stream, when);
		return true;
	}
	if (when < *wake)
		*wake = when;
	return false;
}

static bool step_wait(struct sim_stream *stream, uint64_t *wake)
{
	if (value_reached(stream->head)) {
		stream_finish(stream, engine_now());
		return true;
	}
	uint64_t now = engine_now();
	if (!stream->waiting_ns)
		stream->waiting_ns = now;
	uint64_t when = now + value_pause(now - stream->waiting_ns);
	if (when < *wake)
		*wake = when;
	return false;
}

/* Carries the head on; true: it is done. *wake: when to look again at the latest. */
static bool step(struct sim_stream *stream, uint64_t *wake)
{
	struct sim_op *op = stream->head;
	if (!op || stream->busy || !ordered(stream))
		return false;
	switch (op->kind) {
	case SIM_OP_KERNEL:
		return step_kernel(stream, wake);
	case SIM_OP_WAIT_VALUE:
		return step_wait(stream, wake);
	case SIM_OP_COPY:
	case SIM_OP_SET:
		run_unlocked(stream);
		return true;
	case SIM_OP_HOST:
		host_ask(stream);
		return false;
	case SIM_OP_WAIT_EVENT: {
		const struct sim_event *event = op->event.event;
		if (event->done < op->event.number)
			return false;
		stream_finish(stream,
		              ready_time(stream) > event->time_ns ? ready_time(stream) : event->time_ns);
		return true;
	}
	case SIM_OP_RECORD:
		op->event.event->done = op->event.number;
		op->event.event->time_ns = ready_time(stream);
		break;
	case SIM_OP_WRITE_VALUE:
		value_write(op);
		break;
	case SIM_OP_EMPTY:
		break;
	}
	stream_finish(stream, ready_time(stream));
	return true;
}

/* Of the streams whose head is a kernel the one that goes next: by priority, then by age. */
static struct sim_stream *next_kernel(uint32_t gpu)
{
	struct sim_stream *best = NULL;
	for (struct sim_context *c = sim.contexts; c; c = c->next) {
		for (struct sim_stream *s = c->gpu == gpu ? c->streams : NULL; s; s = s->next) {
			if (!s->head || s->busy || s->head->kind != SIM_OP_KERNEL || !ordered(s))
				continue;
			if (!best || s->priority < best->priority ||
			    (s->priority == best->priority && s->head->ready_ns < best->head->ready_ns))
				best = s;
		}
	}
	return best;
}

/* One round over all streams; true: something was done. */
static bool round_of_work(uint64_t *wake)
{
	bool progress = false;
	for (struct sim_context *c = sim.contexts; c; c = c->next)
		for (struct sim_stream *s = c->streams; s; s = s->next)
			if (s->head && s->head->kind != SIM_OP_KERNEL && step(s, wake))
				return true; /* the lists may have changed while the lock was given up */
	for (uint32_t gpu = 0; gpu < sim.machine.shape.count; gpu++) {
		struct sim_stream *stream = at_engine[gpu] ? at_engine[gpu] : next_kernel(gpu);
		progress |= stream && step(stream, wake);
	}
	return progress;
}

static void *worker_thread(void *unused)
{
	prctl(PR_SET_TIMERSLACK, 1ul); /* a kernel's end is noticed when it comes, not 50 us later */
	pthread_mutex_lock(&sim.lock);
	for (;;) {
		uint64_t wake = NEVER;
		if (round_of_work(&wake))
			continue;
		if (wake == NEVER) {
			pthread_cond_wait(&work, &sim.lock);
		} else {
			struct timespec t = {(time_t)(wake / 1000000000u), (long)(wake % 1000000000u)};
			pthread_cond_timedwait(&work, &sim.lock, &t);
		}
	}
	return unused;
}

void thread_start(void *(*body)(void *))
{
	pthread_t thread;
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, body, NULL))
		abort();
	pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void start(void)
{
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&work, &attributes);
	pthread_condattr_destroy(&attributes);
	started = true;
	thread_start(worker_thread);
}

/* Whether the head can be carried out right here, in the time a call may take. */
static bool at_once(const struct sim_stream *stream, uint64_t bytes)
{
	const struct sim_op *op = stream->head;
	switch (op->kind) {
	case SIM_OP_COPY:
		return op->copy.WidthInBytes * op->copy.Height * op->copy.Depth <= bytes;
	case SIM_OP_SET:
		return op->set.width * op->set.elementSize * op->set.height <= bytes;
	case SIM_OP_KERNEL:
	case SIM_OP_HOST:
		return false;
	default:
		return true;
	}
}

/* Does what can be done here; wakes the worker for the rest. */
static void kick(struct sim_stream *stream, uint64_t bytes)
{
	uint64_t wake = NEVER;
	while (stream->head && !stream->busy && at_once(stream, bytes) && step(stream, &wake))
		;
	if (!stream->head && !started)
		return;
	if (!started)
		start();
	pthread_cond_signal(&work);
}

CUresult stream_queue(struct sim_stream *stream, const struct sim_op *given)
{
	struct sim_op *op = malloc(sizeof(*op));
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*op = *given;
	op->next = NULL;
	op->submitted = false;
	op->sequence = ++sim.next_id;
	op->ready_ns = engine_now();
	if (stream->tail)
		stream->tail->next = op;
	else
		stream->head = op;
	stream->tail = op;
	stream->asked = op->sequence;
	kick(stream, AT_ONCE);
	return CUDA_SUCCESS;
}

CUresult stream_ask(struct sim_stream *stream, const struct sim_op *op)
{
	if (stream->capture)
		return capture_add(stream->capture, stream, op);
	SIM_TRY(capture_refuses_legacy(stream));
	return stream_queue(stream, op);
}

void stream_wait(struct sim_stream *stream)
{
	uint64_t target = stream->asked;
	stream->waiters++;
	while (stream->done < target && stream->head) {
		if (!stream->busy && at_once(stream, UINT64_MAX)) {
			uint64_t wake = NEVER;
			if (step(stream, &wake))
				continue;
		}
		if (!started)
			start();
		pthread_cond_signal(&work);
		pthread_cond_wait(&changed, &sim.lock);
	}
	stream->waiters--;
}

void event_wait(struct sim_event *event)
{
	uint64_t target = event->recorded;
	while (event->done < target)
		pthread_cond_wait(&changed, &sim.lock);
}

/* A stream of the context that has work asked for up to `target`. */
static struct sim_stream *working(struct sim_context *context, uint64_t target)
{
	struct sim_stream *s = context->streams;
	while (s && (!s->head || s->head->sequence > target))
		s = s->next;
	return s;
}

void context_wait(struct sim_context *context)
{
	uint64_t target = sim.next_id;
	for (struct sim_stream *s = working(context, target); s; s = working(context, target)) {
		uint64_t wake = NEVER;
		if (!s->busy && at_once(s, UINT64_MAX) && step(s, &wake))
			continue;
		if (!started)
			start();
		pthread_cond_signal(&work);
		pthread_cond_wait(&changed, &sim.lock);
	}
}

/* Whether the head can go on without a word or an event that may never come. */
static bool can_go_on(const struct sim_stream *stream)
{
	const struct sim_op *op = stream->head;
	if (!op)
		return false;
	if (stream->busy || op->submitted)
		return true;
	if (!ordered(stream))
		return false;
	if (op->kind == SIM_OP_WAIT_VALUE)
		return value_reached(op);
	return op->kind != SIM_OP_WAIT_EVENT || op->event.event->done >= op->event.number;
}

void context_drain(struct sim_context *context)
{
	for (struct sim_stream *s = context->streams; s;) {
		if (!can_go_on(s)) {
			s = s->next;
			continue;
		}
		uint64_t wake = NEVER;
		if (s->busy || !at_once(s, UINT64_MAX) || !step(s, &wake)) {
			if (!started)
				start();
			pthread_cond_signal(&work);
			pthread_cond_wait(&changed, &sim.lock);
		}
		s = context->streams;
	}
	for (struct sim_stream *s = context->streams; s; s = s->next)
		while (s->head)
			stream_finish(s, s->time_ns);
}
