/* Words in memory that streams wait for and write.
 *
 * A stream that waits costs the GPU nothing. The worker looks at its word again and again: soon
 * while the wait is young, since somebody may be about to write it, and less often later.
 */
#include "cuda_stream.h"

#include <sys/mman.h>

#define PAUSE_MIN_NS 20000ull    /* between looks at a word: a 32nd of how long it was waited for */
#define PAUSE_SOON_NS 100000ull  /* ... but no more than this ... */
#define SOON_NS 100000000ull     /* ... for so long, ... */
#define PAUSE_LATER_NS 250000ull /* ... than this ... */
#define LATER_NS 1000000000ull   /* ... for so long, and then */
#define PAUSE_LONG_NS 2000000ull

bool value_reached(const struct sim_op *op)
{
	uint64_t now = op->value.wide
	                   ? __atomic_load_n((uint64_t *)op->value.address, __ATOMIC_ACQUIRE)
	                   : __atomic_load_n((uint32_t *)op->value.address, __ATOMIC_ACQUIRE);
	uint64_t value = op->value.value;
	switch (op->value.flags & 3) {
	case CU_STREAM_WAIT_VALUE_EQ:
		return now == value;
	case CU_STREAM_WAIT_VALUE_AND:
		return now & value;
	case CU_STREAM_WAIT_VALUE_NOR:
		return op->value.wide ? ~(now | value) : (uint32_t)~(now | value);
	default:
		return op->value.wide ? (int64_t)(now - value) >= 0
		                      : (int32_t)((uint32_t)now - (uint32_t)value) >= 0;
	}
}

void value_write(const struct sim_op *op)
{
	if (op->value.wide)
		__atomic_store_n((uint64_t *)op->value.address, op->value.value, __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)op->value.address, (uint32_t)op->value.value,
		                 __ATOMIC_RELEASE);
}

uint64_t value_pause(uint64_t waited)
{
	if (waited > LATER_NS)
		return PAUSE_LONG_NS;
	uint64_t pause = waited / 32, most = waited > SOON_NS ? PAUSE_LATER_NS : PAUSE_SOON_NS;
	return pause < PAUSE_MIN_NS ? PAUSE_MIN_NS : pause > most ? most : pause;
}

bool value_writable(uint64_t address, uint64_t size)
{
	if (!range_covers(address, size, PROT_WRITE))
		return false;
	const struct sim_range *range = range_find(address);
	return range->memory != SIM_REGISTERED || !(range->flags & CU_MEMHOSTREGISTER_READ_ONLY);
}

static CUresult prepare(struct sim_op *op, enum sim_op_kind kind, uint64_t address, uint64_t value,
                        uint32_t flags, bool wide)
{
	uint32_t known = kind == SIM_OP_WAIT_VALUE ? 3u | CU_STREAM_WAIT_VALUE_FLUSH
	                                           : (uint32_t)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
	uint64_t size = wide ? 8 : 4;
	bool usable = kind == SIM_OP_WAIT_VALUE ? range_covers(address, size, PROT_READ)
	                                        : value_writable(address, size);
	if (flags & ~known || address % size || !usable)
		return CUDA_ERROR_INVALID_VALUE;
	*op = (struct sim_op){.kind = kind};
	op->value.address = address;
	op->value.value = value;
	op->value.flags = flags;
	op->value.wide = wide;
	return CUDA_SUCCESS;
}

static CUresult ask(CUstream in, enum sim_op_kind kind, uint64_t address, uint64_t value,
                    uint32_t flags, bool wide)
{
	SIM_ENTER();
	struct sim_stream *stream;
	struct sim_op op;
	if (sim.without_stream_operations)
		return CUDA_ERROR_NOT_SUPPORTED;
	SIM_TRY(stream_get(in, &stream));
	SIM_TRY(prepare(&op, kind, address, value, flags, wide));
	return stream_ask(stream, &op);
}

CUresult cuStreamWaitValue32_v2(CUstream in, CUdeviceptr address, cuuint32_t value,
                                unsigned int flags)
{
	return ask(in, SIM_OP_WAIT_VALUE, address, value, flags, false);
}

CUresult cuStreamWaitValue64_v2(CUstream in, CUdeviceptr address, cuuint64_t value,
                                unsigned int flags)
{
	return ask(in, SIM_OP_WAIT_VALUE, address, value, flags, true);
}

CUresult cuStreamWriteValue32_v2(CUstream in, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags)
{
	return ask(in, SIM_OP_WRITE_VALUE, address, value, flags, false);
}

CUresult cuStreamWriteValue64_v2(CUstream in, CUdeviceptr address, cuuint64_t value,
                                 unsigned int flags)
{
	return ask(in, SIM_OP_WRITE_VALUE, address, value, flags, true);
}

CUresult cuStreamWaitValue32(CUstream in, CUdeviceptr address, cuuint32_t value, unsigned int flags)
{
	return cuStreamWaitValue32_v2(in, address, value, flags);
}

CUresult cuStreamWaitValue64(CUstream in, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
	return cuStreamWaitValue64_v2(in, address, value, flags);
}

CUresult cuStreamWriteValue32(CUstream in, CUdeviceptr address, cuuint32_t value,
                              unsigned int flags)
{
	return cuStreamWriteValue32_v2(in, address, value, flags);
}

CUresult cuStreamWriteValue64(CUstream in, CUdeviceptr address, cuuint64_t value,
                              unsigned int flags)
{
	return cuStreamWriteValue64_v2(in, address, value, flags);
}

static CUresult batch_op(struct sim_op *op, const CUstreamBatchMemOpParams *p)
{
	switch ((int)p->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		return prepare(op, SIM_OP_WAIT_VALUE, p->waitValue.address, p->waitValue.value,
		               p->waitValue.flags, false);
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		return prepare(op, SIM_OP_WAIT_VALUE, p->waitValue.address, p->waitValue.value64,
		               p->waitValue.flags, true);
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		return prepare(op, SIM_OP_WRITE_VALUE, p->writeValue.address, p->writeValue.value,
		               p->writeValue.flags, false);
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		return prepare(op, SIM_OP_WRITE_VALUE, p->writeValue.address, p->writeValue.value64,
		               p->writeValue.flags, true);
	case CU_STREAM_MEM_OP_BARRIER:
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		*op = (struct sim_op){.kind = SIM_OP_EMPTY};
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuStreamBatchMemOp_v2(CUstream in, unsigned int count, CUstreamBatchMemOpParams *params,
                               unsigned int flags)
{
	SIM_ENTER();
	struct sim_stream *stream;
	struct sim_op op;
	if (sim.without_stream_operations)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!params || !count || count > 256 || flags)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(in, &stream));
	for (unsigned int i = 0; i < count; i++)
		SIM_TRY(batch_op(&op, &params[i]));
	for (unsigned int i = 0; i < count; i++) {
		SIM_TRY(batch_op(&op, &params[i]));
		SIM_TRY(stream_ask(stream, &op));
	}
	return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp(CUstream in, unsigned int count, CUstreamBatchMemOpParams *params,
                            unsigned int flags)
{
	return cuStreamBatchMemOp_v2(in, count, params, flags);
}
