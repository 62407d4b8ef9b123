/* Operations: what they own, and how one leaves its stream. See stream.h. */
#include "cuda/graph/capture.h"
#include "cuda/stream/stream.h"
#include "cuda/stream/threads.h"

#include <stdlib.h>
#include <string.h>

void event_release(struct sim_event *event)
{
	if (--event->references)
		return;
	capture_forget_event(event);
	free(event);
}

void arguments_free(struct sim_arguments *arguments)
{
	free(arguments->pointers);
	free(arguments->bytes);
	memset(arguments, 0, sizeof(*arguments));
}

static bool names_event(const struct sim_op *op)
{
	return op->kind == SIM_OP_RECORD || op->kind == SIM_OP_WAIT_EVENT;
}

void operation_release(struct sim_op *op)
{
	if (op->kind == SIM_OP_KERNEL)
		arguments_free(&op->kernel.arguments);
	if (names_event(op))
		event_release(op->event.event);
	free(op->staged);
}

bool operation_copy(struct sim_op *to, const struct sim_op *from)
{
	*to = *from;
	if (names_event(from))
		from->event.event->references++;
	if (from->kind != SIM_OP_KERNEL || !from->kernel.arguments.bytes)
		return true;
	const struct sim_arguments *a = &from->kernel.arguments;
	struct sim_arguments *own = &to->kernel.arguments;
	own->bytes = malloc(a->size ? a->size : 1);
	own->pointers = calloc(a->count + 1, sizeof(void *));
	if (!own->bytes || !own->pointers)
		return false;
	memcpy(own->bytes, a->bytes, a->size);
	for (size_t i = 0; i < a->count; i++)
		own->pointers[i] = own->bytes + ((char *)a->pointers[i] - a->bytes);
	return true;
}

void operation_free(struct sim_op *op)
{
	operation_release(op);
	free(op);
	__atomic_sub_fetch(&sim_self()->work, 1, __ATOMIC_RELEASE);
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
	operation_free(op);
	progress_announce();
	worker_wake();
}
