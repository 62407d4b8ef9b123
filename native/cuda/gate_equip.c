/* What a context needs for gates: the two pages, registered for itself; and whether they work.
 *
 * A registration belongs to the context that made it, and memory can be registered once: so each
 * context gets mappings of its own, and drops them when it has ended; the driver has let go of them by
 * then. The first context of a slice tries out whether the GPU waits and writes as it should. */
#define _GNU_SOURCE
#include "door.h"
#include "gate.h"
#include "session.h"

#include <sys/mman.h>
#include <time.h>

#define TEST_NS UINT64_C(1000000000)
#define TEST_PAUSE_NS 20000
#define TEST_PATIENCE_NS (2 * TEST_NS)

/* Another mapping of the same pages: an old size of 0 asks for that, and needs no descriptor. */
static void *map_again(const void *page, size_t size)
{
	void *mapping = mremap((void *)page, 0, size, MREMAP_MAYMOVE);
	return mapping == MAP_FAILED ? NULL : mapping;
}

void gate_unequip(struct gate_context *context)
{
	if (context->credit_mapping)
		munmap((void *)context->credit_mapping, ALIQUOT_CREDIT_SIZE);
	if (context->work_mapping)
		munmap(context->work_mapping, ALIQUOT_WORK_SIZE);
	context->credit_mapping = context->work_mapping = NULL;
}

static CUresult register_page(const void *page, size_t size, unsigned flags, CUdeviceptr *device)
{
	if (!page)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemHostRegister_v2)((void *)page, size, flags);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemHostGetDevicePointer_v2)(device, (void *)page, 0);
	if (result != CUDA_SUCCESS)
		REAL(cuMemHostUnregister)((void *)page);
	return result;
}

static CUresult register_pages(struct gate_context *context)
{
	const struct gate *gate = context->gate;
	CUdeviceptr credit, work;
	context->credit_mapping = map_again(session_credit(), ALIQUOT_CREDIT_SIZE);
	context->work_mapping = map_again(gate->work, ALIQUOT_WORK_SIZE);
	CUresult result = register_page(context->credit_mapping, ALIQUOT_CREDIT_SIZE,
	                                CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY,
	                                &credit);
	if (result == CUDA_SUCCESS) {
		result = register_page(context->work_mapping, ALIQUOT_WORK_SIZE,
		                       CU_MEMHOSTREGISTER_DEVICEMAP, &work);
		if (result != CUDA_SUCCESS)
			REAL(cuMemHostUnregister)((void *)context->credit_mapping);
	}
	if (result != CUDA_SUCCESS) {
		gate_unequip(context);
		return result;
	}
	context->credit_word = credit + (CUdeviceptr)offsetof(struct aliquot_credit, slices) +
	                       gate->index * sizeof(struct aliquot_credit_slice) +
	                       offsetof(struct aliquot_credit_slice, credit);
	context->marks = work + offsetof(struct aliquot_work_slice, marks);
	return CUDA_SUCCESS;
}

/* --- trying out --------------------------------------------------------------------------------- */

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

static CUresult ask(CUstream stream)
{
	bool inside = door_enter();
	CUresult result = REAL(cuStreamQuery)(stream);
	if (inside)
		door_leave();
	return result;
}

static CUresult wait_briefly(CUstream stream)
{
	struct timespec pause = {.tv_nsec = TEST_PAUSE_NS};
	CUresult result;
	for (uint64_t end = gate_now_ns() + TEST_NS;
	     (result = ask(stream)) == CUDA_ERROR_NOT_READY && gate_now_ns() < end;)
		nanosleep(&pause, NULL);
	return result;
}

/* A gate that stands open and a mark behind it, in a stream of our own. */
static CUresult try_stream(struct gate_context *context, CUstream stream)
{
	struct gate *gate = context->gate;
	struct gate_stream trial = {.context = context, .mark = GATE_NO_MARK};
	if (!gate_take_mark(gate, &trial))
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct aliquot_mark *word = &gate->work->marks[trial.mark];
	uint64_t asked = atomic_load(&word->asked) + 1;
	CUresult result = REAL(cuStreamWaitValue64_v2)(stream, context->credit_word, 0,
	                                               CU_STREAM_WAIT_VALUE_GEQ);
	if (result == CUDA_SUCCESS) {
		atomic_store(&word->asked, asked);
		result = REAL(cuStreamWriteValue64_v2)(stream,
		                                       context->marks +
		                                           trial.mark * sizeof(struct aliquot_mark),
		                                       asked, 0);
	}
	if (result == CUDA_SUCCESS)
		result = wait_briefly(stream);
	if (result == CUDA_SUCCESS && atomic_load(&word->done) != asked)
		result = CUDA_ERROR_UNKNOWN;
	if (result == CUDA_SUCCESS)
		gate->marks++;
	atomic_store(&gate->mark_of[trial.mark].is_held, result != CUDA_SUCCESS);
	return result;
}

static CUresult try_gates(struct gate_context *context)
{
	CUstream stream;
	CUresult result = REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
	if (result == CUDA_SUCCESS) {
		result = try_stream(context, stream);
		REAL(cuStreamDestroy_v2)(stream);
	}
	return result;
}

/* The slice's first context decides for all of them. */
CUresult gate_equip(struct gate_context *context, CUdevice device)
{
	struct gate *gate = context->gate;
	if (!gate_take(gate, TEST_PATIENCE_NS))
		return CUDA_ERROR_NOT_READY;
	CUresult result = CUDA_ERROR_NOT_SUPPORTED;
	uint32_t tried = atomic_load(&gate->work->gates);
	if (tried != ALIQUOT_GATES_FAIL)
		result = check_device(device);
	if (result == CUDA_SUCCESS)
		result = register_pages(context);
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
