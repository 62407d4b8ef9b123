/* Runs the streams' operations, and waits for them. See stream.h. */
#include "cuda/graph/capture.h"
#include "cuda/stream/stream.h"
#include "cuda/stream/threads.h"

#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AT_ONCE (64u << 10) /* the submitting thread itself runs copies up to this size */
#define ANY_SIZE UINT64_MAX

bool stream_idle(const struct sim_stream *stream)
{
	return !stream->head;
}

/* Drops the operations of a stream, except a first one that a thread is running. */
static void drop(struct sim_stream *stream)
{
	struct sim_op *head = stream->head, *kept = NULL;
	if (head && head->issued && head->kind != SIM_OP_KERNEL)
		kept = head;
	for (struct sim_op *op = kept ? kept->next : head, *next; op; op = next) {
		next = op->next;
		if (op->kind == SIM_OP_RECORD && op->event.event->done < op->event.number)
			op->event.event->done = op->event.number; /* so that threads stop waiting for it */
		operation_free(op);
	}
	stream->head = stream->tail = kept;
	if (kept)
		kept->next = NULL;
	else
		stream->done = stream->submitted;
}

static void drop_all(struct sim_context *context)
{
	kernels_drop(context);
	queue_drop(context);
	for (struct sim_stream *s = context->streams; s; s = s->next)
		drop(s);
	progress_announce();
}

/* Steps a queue of the context. If an operation in it faulted, drops the context's operations. */
static bool step(struct sim_context *context, struct sim_queue *queue, uint64_t bytes,
                 uint64_t *wake)
{
	bool faulted = context->fault;
	if (!queue_step(queue, bytes, wake))
		return false;
	if (context->fault && !faulted)
		drop_all(context);
	return true;
}

/* One round over all queues and GPUs; true: something was done. */
static bool round_of_work(uint64_t *wake)
{
	for (struct sim_context *c = sim.contexts; c; c = c->next)
		for (uint32_t i = 0; c->live && i < c->queue_count; i++)
			for (int set = 0; set < 2; set++)
				if (step(c, &c->queues[set][i], ANY_SIZE, wake))
					return true; /* the lists may have changed while the lock was released */
	bool progress = false;
	for (uint32_t gpu = 0; gpu < sim.machine.shape.count; gpu++) {
		struct sim_context *faulted = NULL;
		progress |= kernels_step(gpu, wake, &faulted);
		if (faulted)
			drop_all(faulted);
	}
	return progress;
}

static void *worker_thread(void *unused)
{
	prctl(PR_SET_TIMERSLACK, 1ul); /* to notice a kernel's end at once, not 50 us later */
	pthread_mutex_lock(&sim.lock);
	__atomic_store_n(&sim_self()->worker, (int32_t)syscall(SYS_gettid), __ATOMIC_RELAXED);
	for (;;) {
		uint64_t wake = SIM_NEVER;
		if (round_of_work(&wake))
			continue;
		worker_sleep(wake);
	}
	return unused;
}

static void start_worker(void)
{
	if (!worker_started())
		worker_start(worker_thread);
}

/* Runs what it can of a queue in this thread, and wakes the worker if it has to do the rest. True:
 * something was done. */
static bool advance_queue(struct sim_context *context, struct sim_queue *queue, uint64_t bytes)
{
	uint64_t wake = SIM_NEVER;
	bool progress = false;
	while (step(context, queue, bytes, &wake))
		progress = true;
	if (wake != SIM_NEVER) {
		start_worker();
		worker_wake();
	}
	return progress;
}

CUresult stream_enqueue(struct sim_stream *stream, const struct sim_op *given)
{
	struct sim_op *op = malloc(sizeof(*op));
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*op = *given;
	op->stream = stream;
	op->next = op->behind = NULL;
	op->issued = false;
	op->sequence = ++sim.next_id;
	op->ready_ns = machine_now();
	__atomic_add_fetch(&sim_self()->work, 1, __ATOMIC_RELAXED);
	if (stream->tail)
		stream->tail->next = op;
	else
		stream->head = op;
	stream->tail = op;
	stream->submitted = op->sequence;
	queue_add(op);
	if (queue_of(op)->first == op) /* else the worker runs it when its turn comes */
		advance_queue(stream->context, queue_of(op), AT_ONCE);
	if (stream->head)
		start_worker();
	return CUDA_SUCCESS;
}

CUresult stream_submit(struct sim_stream *stream, const struct sim_op *op)
{
	if (stream->capture)
		return capture_add(stream->capture, stream, op);
	SIM_TRY(capture_check_legacy(stream));
	return stream_enqueue(stream, op);
}

/* Runs what it can of a stream's queue; if that did not finish the first operation, waits for progress. */
static void advance_or_wait(const struct sim_stream *stream)
{
	uint64_t sequence = stream->head->sequence;
	advance_queue(stream->context, queue_of(stream->head), ANY_SIZE);
	if (stream->head && stream->head->sequence == sequence)
		progress_wait();
}

CUresult stream_wait(struct sim_stream *stream)
{
	uint64_t target = stream->submitted;
	stream->waiters++;
	while (stream->done < target && stream->head)
		advance_or_wait(stream);
	stream->waiters--;
	return stream->context->fault;
}

CUresult event_wait(struct sim_event *event)
{
	uint64_t target = event->recorded;
	while (event->done < target)
		progress_wait();
	return event->context->fault;
}

/* A stream of the context that has an operation submitted up to `target`; NULL: there is none. */
static struct sim_stream *working(struct sim_context *context, uint64_t target)
{
	struct sim_stream *s = context->streams;
	while (s && (!s->head || s->head->sequence > target))
		s = s->next;
	return s;
}

CUresult context_wait(struct sim_context *context)
{
	uint64_t target = sim.next_id;
	for (struct sim_stream *s = working(context, target); s; s = working(context, target))
		advance_or_wait(s);
	return context->fault;
}

/* Whether an operation of the context runs that will end by itself. */
static bool in_flight(const struct sim_context *context)
{
	for (const struct sim_stream *s = context->streams; s; s = s->next)
		if (s->head && s->head->issued && !kernel_spins(s->head))
			return true;
	return false;
}

/* The next context from `c` on whose work counts: `context`, or `every` live one. */
static struct sim_context *involved(struct sim_context *c, const struct sim_context *context,
                                    bool every)
{
	while (c && c != context && !(every && c->live))
		c = c->next;
	return c;
}

/* Brings the work of `context`, or of every context, forward, and waits where it must. False: nothing
 * of it can end any more. */
static bool advance_what_can_end(const struct sim_context *context, bool every)
{
	bool more = false, runs = false;
	struct sim_context *c = involved(sim.contexts, context, every);
	for (; c; c = involved(c->next, context, every))
		for (uint32_t i = 0; i < c->queue_count; i++)
			for (int set = 0; set < 2; set++)
				more |= advance_queue(c, &c->queues[set][i], ANY_SIZE);
	if (more)
		return true;
	for (c = involved(sim.contexts, context, every); c; c = involved(c->next, context, every))
		runs |= in_flight(c);
	if (runs)
		progress_wait();
	return runs;
}

/* Whether an operation outside the context `but` uses memory of `context` (NULL: of any) in [base, end).
 * `lost`: such operations fault when their turn comes. */
static bool find_uses(const struct sim_context *context, uint64_t base, uint64_t end,
                      const struct sim_context *but, bool lost)
{
	bool found = false;
	for (struct sim_context *c = sim.contexts; c; c = c->next)
		for (struct sim_stream *s = c->live && c != but ? c->streams : NULL; s; s = s->next)
			for (struct sim_op *op = s->head; op; op = op->next)
				if (operation_uses(op, context, base, end)) {
					found = true;
					op->lost |= lost;
				}
	return found;
}

void context_drain(struct sim_context *context)
{
	while (advance_what_can_end(context, find_uses(context, 0, UINT64_MAX, context, false)))
		;
	find_uses(context, 0, UINT64_MAX, context, true);
	drop_all(context);
}

void memory_wait(uint64_t base, uint64_t size)
{
	while (find_uses(NULL, base, base + size, NULL, false) && advance_what_can_end(NULL, true))
		;
	find_uses(NULL, base, base + size, NULL, true);
}

/* Whether a copy or fill of the memory runs without the lock now. */
static bool is_being_moved(uint64_t base, uint64_t end)
{
	for (struct sim_context *c = sim.contexts; c; c = c->next)
		for (struct sim_stream *s = c->live ? c->streams : NULL; s; s = s->next)
			if (s->busy && s->head && operation_uses(s->head, NULL, base, end))
				return true;
	return false;
}

void memory_lose(uint64_t base, uint64_t size)
{
	while (is_being_moved(base, base + size))
		progress_wait();
	find_uses(NULL, base, base + size, NULL, true);
}

struct sim_range *range_wait(uint64_t base)
{
	const struct sim_range *range = range_exact(base);
	if (range)
		memory_wait(base, range->size);
	return range_exact(base);
}
