#include "swappable.h"

#include "gate/base.h"
#include "gate/gate.h"
#include "page.h"
#include "places.h"
#include "session.h"
#include "spill.h"

bool swappable_is_on(void)
{
	return session_limits()->slices[0].swap == 1;
}

/* --- shadows ----------------------------------------------------------------------------------- */

static struct allocation_request shadow_request(const struct allocation_request *request)
{
	return (struct allocation_request){
		.map = &allocated_pointers,
		.bytes = PAGE_BYTES,
		.context = request->context,
		.slice = request->slice,
		.kind = ALLOCATION_SHARED_PAGE,
	};
}

static void give_up(CUdeviceptr shadow)
{
	struct allocation entry;
	gate_close_before_wait();
	if (allocation_map_take(&allocated_pointers, shadow, &entry))
		allocation_freed(&allocated_pointers, &entry, REAL(cuMemFree_v2)(shadow));
}

/* Allocate memory whose shadow the driver has made. After an error the shadow is freed. */
static CUresult allocate(struct allocation_request *request, CUdeviceptr shadow, uint64_t bytes,
                         bool on_host, CUdeviceptr *pointer)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	request->shadow = shadow;
	allocation_set_cost(request, bytes);
	if (on_host)
		request->slice = ALIQUOT_HOST_SLICE;
	if ((!on_host || spill_host_has(request->bytes)) && allocation_charge(request)) {
		result = places_take(request->context, shadow, bytes, on_host, pointer);
		if (on_host)
			result = spill_answer(result);
		allocation_finish(request, result, *pointer);
	}
	if (result != CUDA_SUCCESS)
		give_up(shadow);
	if (result != CUDA_SUCCESS && on_host)
		spill_count_pieces(0);
	return result;
}

static bool charge_shadow(struct allocation_request *request, bool on_host)
{
	if (on_host)
		spill_fill_spare(request->slice);
	if (allocation_charge(request))
		return true;
	request->takes_spare = on_host && spill_take_spare();
	return request->takes_spare;
}

/* The body of a call that allocates: `call` makes the shadow. Before it the slice is charged for a page
 * that the shadow may need. */
#define MAKE_SHADOW(request, shadow, result, call)                                                 \
	struct allocation_request of_shadow = shadow_request(request);                                 \
	if (!charge_shadow(&of_shadow, on_host))                                                       \
		return CUDA_ERROR_OUT_OF_MEMORY;                                                           \
	CUresult result = call;                                                                        \
	allocation_finish(&of_shadow, result, shadow)

CUresult swappable_alloc(__typeof__(&cuMemAlloc_v2) real, bool on_host, CUdeviceptr *pointer,
                         size_t bytes)
{
	struct allocation_request request = {.map = &allocated_pointers};
	CUdeviceptr shadow = 0;
	if (!pointer || bytes == 0 || !allocation_in_current_context(&request))
		return real(pointer, bytes);
	*pointer = 0;
	MAKE_SHADOW(&request, shadow, result, real(&shadow, 1));
	return result == CUDA_SUCCESS ? allocate(&request, shadow, bytes, on_host, pointer) : result;
}

/* The shadow's one row tells how the driver rounds rows up. */
CUresult swappable_alloc_pitch(__typeof__(&cuMemAllocPitch_v2) real, bool on_host,
                               CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                               unsigned element)
{
	struct allocation_request request = {.map = &allocated_pointers};
	CUdeviceptr shadow = 0;
	uint64_t bytes;
	size_t granule = 0;
	if (!pointer || !pitch || !allocation_pitched_bytes(width, height, element, 1, &bytes) ||
	    !allocation_in_current_context(&request))
		return real(pointer, pitch, width, height, element);
	*pointer = *pitch = 0;
	MAKE_SHADOW(&request, shadow, result, real(&shadow, &granule, 1, 1, element));
	if (result != CUDA_SUCCESS)
		return result;
	if (!allocation_pitched_bytes(width, height, element, granule, &bytes))
		bytes = UINT64_MAX;
	result = allocate(&request, shadow, bytes, on_host, pointer);
	if (result == CUDA_SUCCESS)
		*pitch = (width + granule - 1) / granule * granule;
	return result;
}

/* --- freeing ----------------------------------------------------------------------------------- */

/* The body of a function that frees; `call` frees the shadow. */
#define FREE_SHADOW(allocation, call)                                                              \
	struct allocation shadow;                                                                      \
	bool known = allocation_map_take(&allocated_pointers, (allocation)->shadow, &shadow);          \
	CUresult result = call;                                                                        \
	allocation_freed(&allocated_pointers, known ? &shadow : NULL, result)

CUresult swappable_free(const struct allocation *allocation)
{
	FREE_SHADOW(allocation, REAL(cuMemFree_v2)(allocation->shadow));
	if (result == CUDA_SUCCESS)
		places_give(allocation->key);
	return allocation_freed(&allocated_pointers, allocation, result);
}

/* Only cuMemFree does that. */
void swappable_wait(CUcontext context)
{
	CUdeviceptr pointer;
	CUcontext popped;
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	if (REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
		if (REAL(cuMemAlloc_v2)(&pointer, 1) == CUDA_SUCCESS)
			REAL(cuMemFree_v2)(pointer);
		else
			REAL(cuCtxSynchronize)();
		REAL(cuCtxPopCurrent_v2)(&popped);
	}
	gate_restore_capture_mode(mode);
}

CUresult swappable_free_async(const struct allocation *allocation, __typeof__(&cuMemFreeAsync) real,
                              CUstream stream)
{
	gate_close_before_wait();
	FREE_SHADOW(allocation, real(allocation->shadow, stream));
	if (result == CUDA_SUCCESS) {
		swappable_wait(allocation->context);
		places_give(allocation->key);
	}
	return allocation_freed(&allocated_pointers, allocation, result);
}
