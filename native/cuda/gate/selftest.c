#define _GNU_SOURCE
#include "gate/selftest.h"

#include "freeze_barrier.h"
#include "gate/base.h"
#include "gate/contexts.h"
#include "gate/pages.h"

#include <time.h>

/* A GPU that is busy with others takes its time: slow is not failed. */
#define TEST_NS UINT64_C(30000000000)
#define TEST_PAUSE_LEAST_NS 20000
#define TEST_PAUSE_MOST_NS 1000000
#define TAKE_NS UINT64_C(2000000000)

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
	struct timespec pause = {.tv_nsec = TEST_PAUSE_LEAST_NS};
	CUresult result;
	for (uint64_t end = gate_now_ns() + TEST_NS;
	     (result = query_stream(stream)) == CUDA_ERROR_NOT_READY && gate_now_ns() < end;) {
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < TEST_PAUSE_MOST_NS)
			pause.tv_nsec *= 2;
	}
	return result;
}

/* A gate that lets everything pass and a mark behind it, in a stream of our own. The mark of an earlier
 * trial may come late: it says the same. */
static CUresult try_in_stream(struct gate_context *context, CUstream stream)
{
	struct aliquot_mark *word = &context->gate->work->marks[GATE_TRIAL_WORD];
	CUdeviceptr mark = context->marks + GATE_TRIAL_WORD * sizeof(struct aliquot_mark);
	CUresult result = REAL(cuStreamWaitValue64_v2)(stream, context->credit_word, 0,
	                                               CU_STREAM_WAIT_VALUE_GEQ);
	if (result == CUDA_SUCCESS)
		result = REAL(cuStreamWriteValue64_v2)(stream, mark, 1, 0);
	if (result == CUDA_SUCCESS)
		result = wait_for_stream(stream);
	if (result == CUDA_SUCCESS && atomic_load(&word->done) != 1)
		result = CUDA_ERROR_UNKNOWN;
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

/* Whether that says something about the GPU, and not only about how busy it is now. */
static bool is_final(CUresult result)
{
	return result != CUDA_ERROR_NOT_READY && result != CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult map_pages(struct gate_context *context)
{
	if (!gate_take(context->gate, TAKE_NS))
		return CUDA_ERROR_NOT_READY;
	CUresult result = gate_map_pages(context);
	gate_give(context->gate);
	return result;
}

CUresult gate_set_up_context(struct gate_context *context, CUdevice device)
{
	struct aliquot_work_slice *work = context->gate->work;
	uint32_t tried = atomic_load(&work->gates);
	if (tried == ALIQUOT_GATES_FAIL && is_final((CUresult)atomic_load(&work->why)))
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = check_device(device);
	if (result == CUDA_SUCCESS)
		result = map_pages(context);
	if (tried == ALIQUOT_GATES_WORK)
		return result;
	/* Nobody holds the gate meanwhile: this may take long. */
	if (result == CUDA_SUCCESS)
		result = try_gates(context);
	if (atomic_load(&work->gates) == ALIQUOT_GATES_WORK)
		return result; /* another context's trial has shown it */
	atomic_store(&work->why, (uint32_t)result);
	atomic_store(&work->gates, result == CUDA_SUCCESS ? ALIQUOT_GATES_WORK : ALIQUOT_GATES_FAIL);
	return result;
}
