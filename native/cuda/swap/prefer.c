#include "prefer.h"

#include "allocation.h"
#include "gate/base.h"
#include "gate/gate.h"
#include "pieces.h"
#include "places.h"
#include "pool.h"
#include "session.h"
#include "spill.h"
#include "swappable.h"

/* Copy on a stream of our own, so that no capture and no other work is touched, and wait for it. */
static CUresult copy(CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
	CUstream stream;
	CUresult result = REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemcpyDtoDAsync_v2)(to, from, bytes, stream);
	if (result == CUDA_SUCCESS)
		result = REAL(cuStreamSynchronize)(stream);
	REAL(cuStreamDestroy_v2)(stream);
	return result;
}

/* Give the piece memory of the GPU that is charged already. */
static CUresult bring(struct piece *piece)
{
	struct piece model = {.bytes = piece->bytes,
	                      .device = piece->device,
	                      .context = piece->context};
	CUresult result;
	struct piece *made = piece_make(&model, &result);
	if (!made)
		return result;
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	result = copy(made->address, piece->address, piece->bytes);
	if (result == CUDA_SUCCESS)
		result = piece_take_memory(piece, made);
	gate_restore_capture_mode(mode);
	piece_end(made);
	return result;
}

/* The allocation is the GPU slice's from now on. */
static void charge_to(uint32_t slice, CUdeviceptr base)
{
	allocation_map_lock(&allocated_pointers);
	struct allocation *allocation = allocation_map_find(&allocated_pointers, base);
	if (allocation)
		allocation->slice = slice;
	allocation_map_unlock(&allocated_pointers);
}

/* The piece of a large allocation on the host; NULL: there is none. */
static struct piece *find(CUdeviceptr address)
{
	pieces_lock();
	struct piece *piece = piece_at(address);
	bool fits = piece && piece->is_ready && piece->is_on_host && !piece->slab;
	pieces_unlock();
	return fits ? piece : NULL;
}

static CUresult move(struct piece *piece)
{
	uint32_t slice = session_slice_of_device(piece->device);
	if (!pools_charge(slice, piece->bytes + SPILL_LARGE_LEAVES))
		return CUDA_ERROR_OUT_OF_MEMORY;
	session_release(slice, SPILL_LARGE_LEAVES);
	gate_close_before_wait();
	swappable_wait(piece->context);
	CUresult result = bring(piece);
	if (result != CUDA_SUCCESS) {
		session_release(slice, piece->bytes);
		return result;
	}
	pieces_lock();
	piece->is_on_host = false;
	pieces_unlock();
	charge_to(slice, piece->address);
	session_release(ALIQUOT_HOST_SLICE, piece->bytes);
	spill_count_pieces(-1);
	return CUDA_SUCCESS;
}

CUresult prefer_on_gpu(CUdeviceptr pointer)
{
	struct place view;
	CUcontext popped;
	if (!session_is_open() || !places_find(pointer, &view) || !view.is_on_host)
		return CUDA_SUCCESS;
	struct piece *piece = find(pointer);
	if (!piece)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult result = REAL(cuCtxPushCurrent_v2)(piece->context);
	if (result != CUDA_SUCCESS)
		return result;
	result = move(piece);
	REAL(cuCtxPopCurrent_v2)(&popped);
	return result;
}
