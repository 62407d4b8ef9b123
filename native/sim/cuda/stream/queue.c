/* The hardware queues: when an operation is issued, and what runs at once. See stream.h. */
#include "cuda/stream/copy.h"
#include "cuda/stream/stream.h"

struct sim_queue *queue_of(const struct sim_op *op)
{
	return &op->stream->context->queues[op->kind == SIM_OP_COPY][op->stream->queue];
}

void queue_add(struct sim_op *op)
{
	struct sim_queue *queue = queue_of(op);
	if (queue->last)
		queue->last->behind = op;
	else
		queue->first = op;
	queue->last = op;
}

void queue_drop(struct sim_context *context)
{
	for (uint32_t i = 0; i < context->queue_count; i++)
		for (int set = 0; set < 2; set++)
			context->queues[set][i] = (struct sim_queue){.time_ns = 0};
}

/* Takes the first operation off its queue; `time` is the GPU time. */
static void issue(struct sim_queue *queue, uint64_t time)
{
	struct sim_op *op = queue->first;
	queue->first = op->behind;
	if (!queue->first)
		queue->last = NULL;
	queue->waiting_ns = 0;
	queue->time_ns = time;
	op->behind = NULL;
	op->issued = true;
	op->ready_ns = time;
}

/* Whether `other` still has operations that were submitted before `op`. */
static bool earlier_work(const struct sim_stream *other, const struct sim_op *op)
{
	return other->head && other->head->sequence < op->sequence;
}

/* Whether the order of the legacy stream applies between two streams of a context. */
static bool keep_order(const struct sim_stream *a, const struct sim_stream *b)
{
	const struct sim_stream *legacy = a->context->legacy;
	return a != b && (a == legacy || b == legacy) &&
	       !((a->flags | b->flags) & CU_STREAM_NON_BLOCKING);
}

static bool ordered(const struct sim_op *op)
{
	const struct sim_stream *stream = op->stream;
	if (stream->flags & CU_STREAM_NON_BLOCKING)
		return true;
	if (stream != stream->context->legacy)
		return !earlier_work(stream->context->legacy, op);
	for (const struct sim_stream *s = stream->context->streams; s; s = s->next)
		if (keep_order(stream, s) && earlier_work(s, op))
			return false;
	return true;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Since when nothing blocks a queue's first operation. */
static uint64_t ready_time(const struct sim_queue *queue)
{
	const struct sim_op *op = queue->first;
	const struct sim_stream *stream = op->stream, *legacy = stream->context->legacy;
	uint64_t time = later(later(op->ready_ns, stream->time_ns), queue->time_ns);
	if (stream != legacy)
		return keep_order(stream, legacy) ? later(time, legacy->time_ns) : time;
	for (const struct sim_stream *s = stream->context->streams; s; s = s->next)
		if (keep_order(stream, s))
			time = later(time, s->time_ns);
	return time;
}

/* Runs a copy or fill without the lock. `busy` keeps other threads from freeing the stream. */
static void run_unlocked(struct sim_stream *stream)
{
	struct sim_op *op = stream->head;
	stream->busy = true;
	pthread_mutex_unlock(&sim.lock);
	if (op->kind == SIM_OP_COPY)
		copy_run(&op->copy);
	else
		fill_run(&op->fill);
	pthread_mutex_lock(&sim.lock);
	stream->busy = false;
	stream_finish(stream, machine_now());
}

static uint64_t size_of(const struct sim_op *op)
{
	return op->kind == SIM_OP_COPY
			   ? op->copy.WidthInBytes * op->copy.Height * op->copy.Depth
			   : (uint64_t)op->fill.width * op->fill.elementSize * op->fill.height;
}

static bool step_move(struct sim_queue *queue, uint64_t bytes, uint64_t *wake)
{
	struct sim_op *op = queue->first;
	if (size_of(op) > bytes) {
		*wake = 0;
		return false;
	}
	issue(queue, ready_time(queue));
	run_unlocked(op->stream);
	return true;
}

/* Without prompt values: how long a stream waits at least. */
#define HELD_UP_NS 1500000000ull

static bool step_wait_value(struct sim_queue *queue, uint64_t *wake)
{
	struct sim_op *op = queue->first;
	uint64_t now = machine_now();
	if (!queue->waiting_ns)
		queue->waiting_ns = now;
	bool held_up = sim.without_prompt_values && now - queue->waiting_ns < HELD_UP_NS;
	if (!held_up && value_reached(op)) {
		issue(queue, now);
		stream_finish(op->stream, now);
		return true;
	}
	uint64_t when = now + value_pause(now - queue->waiting_ns);
	if (when < *wake)
		*wake = when;
	return false;
}

static bool step_wait_event(struct sim_queue *queue)
{
	struct sim_op *op = queue->first;
	const struct sim_event *event = op->event.event;
	if (event->done < op->event.number)
		return false;
	issue(queue, later(ready_time(queue), event->time_ns));
	stream_finish(op->stream, op->ready_ns);
	return true;
}

/* An operation that ends as soon as it is issued. */
static bool step_instant(struct sim_queue *queue)
{
	struct sim_op *op = queue->first;
	issue(queue, ready_time(queue));
	if (op->kind == SIM_OP_RECORD && op->event.event->done < op->event.number) {
		op->event.event->done = op->event.number; /* a later record may have ended first */
		op->event.event->time_ns = op->ready_ns;
	} else if (op->kind == SIM_OP_WRITE_VALUE) {
		value_write(op);
	}
	stream_finish(op->stream, op->ready_ns);
	return true;
}

bool queue_step(struct sim_queue *queue, uint64_t bytes, uint64_t *wake)
{
	struct sim_op *op = queue->first;
	if (!op || op->stream->head != op || !ordered(op))
		return false;
	if (op->lost) {
		op->stream->context->fault = CUDA_ERROR_ILLEGAL_ADDRESS;
		return true;
	}
	switch (op->kind) {
	case SIM_OP_KERNEL:
		issue(queue, ready_time(queue));
		kernels_add(op, wake);
		return true;
	case SIM_OP_HOST:
		issue(queue, ready_time(queue));
		host_function_submit(op->stream);
		return true;
	case SIM_OP_COPY:
	case SIM_OP_FILL:
		return step_move(queue, bytes, wake);
	case SIM_OP_WAIT_VALUE:
		return step_wait_value(queue, wake);
	case SIM_OP_WAIT_EVENT:
		return step_wait_event(queue);
	default:
		return step_instant(queue);
	}
}
