/* Streams that come and go, as far as gates must know of them. */
#include "gate.h"

#include <errno.h>

static CUresult made(CUresult result, unsigned flags)
{
	if (result == CUDA_SUCCESS && !(flags & CU_STREAM_NON_BLOCKING))
		gate_blocking_stream();
	return result;
}

CUresult hook_stream_create(__typeof__(&cuStreamCreate) real, CUstream *stream, unsigned flags)
{
	return made(real(stream, flags), flags);
}

CUresult hook_stream_create_with_priority(__typeof__(&cuStreamCreateWithPriority) real,
                                          CUstream *stream, unsigned flags, int priority)
{
	return made(real(stream, flags, priority), flags);
}

void gate_let_go(struct gates *all, uint64_t key)
{
	struct gate_stream *place = gate_find_key(all, key);
	if (!place)
		return;
	int before = errno;
	struct gate *gate = atomic_load(&place->gate);
	if (gate && atomic_load(&place->owes) && gate_take(gate, GATE_PATIENCE_NS)) {
		CUstreamCaptureMode mode = gate_relax();
		quantum_mark(gate, place);
		gate_restrict(mode);
		gate_give(gate);
	}
	gate_drop_stream(all, key);
	errno = before;
}

/* Before the driver is asked: it may give the handle to another thread at once. */
CUresult hook_stream_destroy(__typeof__(&cuStreamDestroy_v2) real, CUstream stream)
{
	struct gates *all = gates_here();
	if (all && !gate_is_default(stream))
		gate_let_go(all, (uint64_t)(uintptr_t)stream);
	return real(stream);
}

CUresult hook_green_destroy(__typeof__(&cuGreenCtxDestroy) real, CUgreenCtx green)
{
	CUcontext context = NULL;
	if (!green || !REAL(cuCtxFromGreenCtx) ||
	    REAL(cuCtxFromGreenCtx)(&context, green) != CUDA_SUCCESS)
		return real(green);
	gate_context_ending(context);
	CUresult result = real(green);
	gate_context_ended(context, result == CUDA_SUCCESS);
	return result;
}
