#define _GNU_SOURCE
#include "gate/selftest.h"

#include "freeze_barrier.h"
#include "gate/base.h"
#include "gate/contexts.h"
#include "gate/marks.h"
#include "gate/pages.h"

#include <time.h>

#define TEST_NS UINT64_C(1000000000)
#define TEST_PAUSE_NS 20000
#define TEST_PATIENCE_NS (2 * TEST_NS)

static CUresult check_device(CUdevice device)
{
	int can = 0;
	if (!REAL(cuStreamWaitValue64_v2) || !REAL(cuStreamWriteValue64_v2) ||
	    !REAL(cuStreamIsCapturing) || !REAL(cuThreadExchangeStreamCaptureMode))
		return CUDA_ERROR_NOT_SUPPORTED; /* a driver before R515 */
	CUresult result = REAL(
		cuDeviceGetAttribute)(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device);
	return result == CUDA_SUCCESS && !can ? CUDA_ERROR_NOT_SUPPORTED : result;
}

static CUresult query_stream(CUstream stream)
{
	bool inside = freeze_barrier_enter();
	CUresult result = REAL(cuStreamQuery)(stream);
	if (inside)
		freeze_barrier_leave();
	return result;
}

static CUresult wait_for_stream(CUstream stream)
{
	struct timespec pause = {.tv_nsec = TEST_PAUSE_NS};
	CUresult result;
	for (uint64_t end = gate_now_ns() + TEST_NS;
	     (result = query_stream(stream)) == CUDA_ERROR_NOT_READY && gate_now_ns() < end;)
		nanosleep(&pause, NULL);
	return result;
}

/* A gate that lets everything pass and a mark behind it, in a stream of our own. */
static CUresult try_in_stream(struct gate_context *context, CUstream stream)
{
	struct gate *gate = context->gate;
	struct gate_stream trial = {.context = context, .mark_word = GATE_NO_MARK_WORD};
	if (!gate_mark_word_assign(gate, &trial))
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct aliquot_mark *word = &gate->work->marks[trial.mark_word];
	uint64_t asked = atomic_load(&word->asked) + 1;
	CUresult result = REAL(cuStreamWaitValue64_v2)(stream, context->credit_word, 0,
	                                               CU_STREAM_WAIT_VALUE_GEQ);
	if (result == CUDA_SUCCESS) {
		atomic_store(&word->asked, asked);
		result = REAL(cuStreamWriteValue64_v2)(stream,
		                                       context->marks +
		                                           trial.mark_word * sizeof(struct aliquot_mark),
		                                       asked, 0);
	}
	if (result == CUDA_SUCCESS)
		result = wait_for_stream(stream);
	if (result == CUDA_SUCCESS && atomic_load(&word->done) != asked)
		result = CUDA_ERROR_UNKNOWN;
	if (result == CUDA_SUCCESS) {
		gate->marks_inserted++;
		gate_mark_word_return(gate, &trial);
	} /* else its mark may still come: nobody uses the word again */
	return result;
}

static CUresult try_gates(struct gate_context *context)
{
	CUstream stream;
	CUresult result = REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
	if (result == CUDA_SUCCESS) {
		result = try_in_stream(context, stream);
		REAL(cuStreamDestroy_v2)(stream);
	}
	return result;
}

CUresult gate_set_up_context(struct gate_context *context, CUdevice device)
{
	struct gate *gate = context->gate;
	if (!gate_take(gate, TEST_PATIENCE_NS))
		return CUDA_ERROR_NOT_READY;
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;
	uint32_t tried = atomic_load(&gate->work->gates);
	if (tried != ALIQUOT_GATES_FAIL)
		result = check_device(device);
	if (result == CUDA_SUCCESS)
		result = gate_map_pages(context);
	if (tried == ALIQUOT_GATES_UNTRIED) {
		if (result == CUDA_SUCCESS)
			result = try_gates(context);
		atomic_store(&gate->work->why, (uint32_t)result);
		atomic_store(&gate->work->gates,
		             result == CUDA_SUCCESS ? ALIQUOT_GATES_WORK : ALIQUOT_GATES_FAIL);
	}
	gate_give(gate);
	return result;
}
