/* The entry points of stream memory operations: cuStreamWaitValue, cuStreamWriteValue and batches. */
#include "cuda/stream/stream.h"

#include <sys/mman.h>

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

static CUresult submit(CUstream in, enum sim_op_kind kind, uint64_t address, uint64_t value,
                       uint32_t flags, bool wide)
{
	SIM_ENTER();
	struct sim_stream *stream;
	struct sim_op op;
	if (sim.without_stream_operations)
		return CUDA_ERROR_NOT_SUPPORTED;
	SIM_TRY(stream_get(in, &stream));
	SIM_TRY(prepare(&op, kind, address, value, flags, wide));
	return stream_submit(stream, &op);
}

CUresult cuStreamWaitValue32_v2(CUstream in, CUdeviceptr address, cuuint32_t value,
                                unsigned int flags)
{
	return submit(in, SIM_OP_WAIT_VALUE, address, value, flags, false);
}

CUresult cuStreamWaitValue64_v2(CUstream in, CUdeviceptr address, cuuint64_t value,
                                unsigned int flags)
{
	return submit(in, SIM_OP_WAIT_VALUE, address, value, flags, true);
}

CUresult cuStreamWriteValue32_v2(CUstream in, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags)
{
	return submit(in, SIM_OP_WRITE_VALUE, address, value, flags, false);
}

CUresult cuStreamWriteValue64_v2(CUstream in, CUdeviceptr address, cuuint64_t value,
                                 unsigned int flags)
{
	return submit(in, SIM_OP_WRITE_VALUE, address, value, flags, true);
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
		SIM_TRY(stream_submit(stream, &op));
	}
	return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp(CUstream in, unsigned int count, CUstreamBatchMemOpParams *params,
                            unsigned int flags)
{
	return cuStreamBatchMemOp_v2(in, count, params, flags);
}
