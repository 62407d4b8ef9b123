/* Operations: what they own, and how one leaves its stream. See stream.h. */
#include "cuda/graph/capture.h"
#include "cuda/stream/copy.h"
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

/* Whether the `size` bytes from `address` on include memory of `context` in [base, end). */
static bool overlaps(uint64_t address, uint64_t size, const struct sim_context *context,
                     uint64_t base, uint64_t end)
{
	for (const struct sim_range *r = range_from(address); r && r->base < address + size;
	     r = range_from(r->base + r->size))
		if ((!context || r->context == context) && r->base < end && r->base + r->size > base)
			return true;
	return false;
}

static bool side_overlaps(struct copy_side side, const CUDA_MEMCPY3D *copy,
                          const struct sim_context *context, uint64_t base, uint64_t end)
{
	return overlaps((uint64_t)side.base, copy_extent(&side, copy), context, base, end);
}

bool operation_uses(const struct sim_op *op, const struct sim_context *context, uint64_t base,
                    uint64_t end)
{
	const CUDA_MEMSET_NODE_PARAMS *fill = &op->fill;
	switch (op->kind) {
	case SIM_OP_KERNEL:
		return op->kernel.address && overlaps(op->kernel.address, 8, context, base, end);
	case SIM_OP_COPY:
		return side_overlaps(copy_source(&op->copy), &op->copy, context, base, end) ||
		       side_overlaps(copy_target(&op->copy), &op->copy, context, base, end);
	case SIM_OP_FILL:
		return overlaps(fill->dst, fill_extent(fill), context, base, end);
	case SIM_OP_WAIT_VALUE:
	case SIM_OP_WRITE_VALUE:
		return overlaps(op->value.address, op->value.wide ? 8 : 4, context, base, end);
	default:
		return false;
	}
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
