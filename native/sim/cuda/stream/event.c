/* Events: markers in streams with the GPU's time, and waits for them. */
#include "cuda/graph/capture.h"
#include "cuda/memory/pool.h"
#include "cuda/stream/stream.h"

#include <stdlib.h>

static CUresult get(CUevent handle, struct sim_event **event)
{
	*event = (struct sim_event *)handle;
	return handle_is(handle, SIM_EVENT) ? (*event)->context->fault : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	if (!out || flags & ~7u ||
	    ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_event *event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->flags = flags;
	event->context = context;
	event->references = 1;
	handle_add(event, SIM_EVENT);
	*out = (CUevent)event;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle)
{
	SIM_ENTER();
	struct sim_event *event;
	SIM_TRY(get(handle, &event));
	handle_remove(event);
	event_release(event);
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent handle)
{
	return cuEventDestroy_v2(handle);
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream in, unsigned int flags)
{
	SIM_ENTER();
	struct sim_event *event;
	struct sim_stream *stream;
	SIM_TRY(get(handle, &event));
	SIM_TRY(stream_get(in, &stream));
	if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (event->context != stream->context)
		return CUDA_ERROR_INVALID_HANDLE;
	struct sim_op op = {.kind = SIM_OP_RECORD};
	op.event.event = event;
	if (stream->capture)
		return stream_submit(stream, &op);
	capture_forget_event(event);
	event->references++;
	op.event.number = ++event->recorded;
	CUresult result = stream_submit(stream, &op);
	if (result) {
		event->recorded--; /* nothing would ever complete this record */
		event_release(event);
	}
	return result;
}

CUresult cuEventRecord(CUevent handle, CUstream in)
{
	return cuEventRecordWithFlags(handle, in, 0);
}

CUresult cuStreamWaitEvent(CUstream in, CUevent handle, unsigned int flags)
{
	SIM_ENTER();
	struct sim_event *event;
	struct sim_stream *stream;
	SIM_TRY(get(handle, &event));
	SIM_TRY(stream_get(in, &stream));
	if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_op op = {.kind = SIM_OP_WAIT_EVENT};
	op.event.event = event;
	op.event.number = event->recorded;
	if (stream->capture || event->capture)
		return capture_add(event->capture ? event->capture : stream->capture, stream, &op);
	event->references++;
	CUresult result = stream_submit(stream, &op);
	if (result)
		event_release(event);
	return result;
}

CUresult cuEventQuery(CUevent handle)
{
	SIM_ENTER_QUERY(sim_crash(__func__));
	struct sim_event *event;
	SIM_TRY(get(handle, &event));
	if (event->capture)
		return CUDA_ERROR_CAPTURED_EVENT;
	return event->done >= event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle)
{
	SIM_ENTER_QUERY(sim_crash(__func__));
	struct sim_event *event;
	SIM_TRY(get(handle, &event));
	if (event->capture)
		return CUDA_ERROR_CAPTURED_EVENT;
	uint32_t gpu = event->context->gpu;
	event->references++;
	CUresult result = event_wait(event);
	event_release(event);
	SIM_TRY(result);
	pool_trim(gpu);
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent first, CUevent second)
{
	SIM_ENTER();
	struct sim_event *start, *end;
	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(first, &start));
	SIM_TRY(get(second, &end));
	if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->recorded || !end->recorded)
		return CUDA_ERROR_INVALID_HANDLE;
	if (start->done < start->recorded || end->done < end->recorded)
		return CUDA_ERROR_NOT_READY;
	*milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent second)
{
	return cuEventElapsedTime_v2(milliseconds, first, second);
}

CUresult cuCtxRecordEvent(CUcontext handle, CUevent event)
{
	struct sim_context *context;
	{
		SIM_ENTER();
		SIM_TRY(context_get(handle, &context));
	}
	return cuEventRecord(event, (CUstream)context->legacy);
}

CUresult cuCtxWaitEvent(CUcontext handle, CUevent event)
{
	struct sim_context *context;
	{
		SIM_ENTER();
		SIM_TRY(context_get(handle, &context));
	}
	return cuStreamWaitEvent((CUstream)context->legacy, event, 0);
}
