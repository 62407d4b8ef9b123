#include "swappable.h"

#include "gate/base.h"
#include "gate/gate.h"
#include "page.h"
#include "pieces.h"
#include "session.h"

#include <stdlib.h>

/* No memory of the driver's is here. */
#define UNKNOWN_ADDRESS ((CUdeviceptr)1)

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

/* --- places for allocations -------------------------------------------------------------------- */

/* With the lock. */
static bool place_in_slab(struct piece *piece, CUcontext context, CUdeviceptr shadow,
                          uint64_t bytes, CUdeviceptr *pointer)
{
	if (piece->context != context || piece->ending)
		return false;
	uint32_t start = slab_take(piece->slab, bytes, shadow);
	if (start != SLAB_NOWHERE)
		*pointer = piece->address + (uint64_t)start * SLAB_STEP;
	return start != SLAB_NOWHERE;
}

static bool place_in_some_slab(CUcontext context, CUdeviceptr shadow, uint64_t bytes,
                               CUdeviceptr *pointer)
{
	bool placed = false;
	if (!pieces_are_there())
		return false;
	pieces_lock();
	for (struct piece *piece = *pieces_slabs(); piece && !placed; piece = piece->next_slab)
		placed = place_in_slab(piece, context, shadow, bytes, pointer);
	pieces_unlock();
	return placed;
}

/* Put the first allocation into a new piece, and let everybody see it. */
static void publish(struct piece *piece, CUdeviceptr shadow, uint64_t bytes, CUdeviceptr *pointer)
{
	pieces_lock();
	*pointer = piece->address;
	if (piece->slab) {
		slab_take(piece->slab, bytes, shadow);
		piece->next_slab = *pieces_slabs();
		*pieces_slabs() = piece;
	} else {
		piece->asked = bytes;
		piece->shadow = shadow;
	}
	piece->is_ready = true;
	pieces_unlock();
	session_count_movable((int64_t)piece->bytes);
}

static CUresult place(CUcontext context, CUdeviceptr shadow, uint64_t bytes, CUdeviceptr *pointer)
{
	bool small = bytes <= PAGE_LARGEST;
	CUdevice device;
	CUresult result = REAL(cuCtxGetDevice)(&device);
	if (result != CUDA_SUCCESS || (small && place_in_some_slab(context, shadow, bytes, pointer)))
		return result;
	struct slab *slab = small ? calloc(1, sizeof(*slab)) : NULL;
	if (small && !slab)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct piece *piece = piece_make(context, device, allocation_cost(small ? SLAB_BYTES : bytes),
	                                 &result);
	if (!piece) {
		free(slab);
		return result;
	}
	piece->slab = slab;
	publish(piece, shadow, bytes, pointer);
	return CUDA_SUCCESS;
}

/* Allocate memory whose shadow the driver has made. After an error the shadow is freed. */
static CUresult allocate(struct allocation_request *request, CUdeviceptr shadow, uint64_t bytes,
                         CUdeviceptr *pointer)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	request->shadow = shadow;
	allocation_set_cost(request, bytes);
	if (allocation_charge(request)) {
		result = place(request->context, shadow, bytes, pointer);
		allocation_finish(request, result, *pointer);
	}
	if (result != CUDA_SUCCESS)
		give_up(shadow);
	return result;
}

/* The body of a call that allocates: `call` makes the shadow. Before it the slice is charged for a page
 * that the shadow may need. */
#define MAKE_SHADOW(request, shadow, result, call)                                                 \
	struct allocation_request of_shadow = shadow_request(request);                                 \
	if (!allocation_charge(&of_shadow))                                                            \
		return CUDA_ERROR_OUT_OF_MEMORY;                                                           \
	CUresult result = call;                                                                        \
	allocation_finish(&of_shadow, result, shadow)

CUresult swappable_alloc(__typeof__(&cuMemAlloc_v2) real, CUdeviceptr *pointer, size_t bytes)
{
	struct allocation_request request = {.map = &allocated_pointers};
	CUdeviceptr shadow = 0;
	if (!pointer || bytes == 0 || !allocation_in_current_context(&request))
		return real(pointer, bytes);
	*pointer = 0;
	MAKE_SHADOW(&request, shadow, result, real(&shadow, 1));
	return result == CUDA_SUCCESS ? allocate(&request, shadow, bytes, pointer) : result;
}

/* The shadow's one row tells how the driver rounds rows up. */
CUresult swappable_alloc_pitch(__typeof__(&cuMemAllocPitch_v2) real, CUdeviceptr *pointer,
                               size_t *pitch, size_t width, size_t height, unsigned element)
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
	result = allocate(&request, shadow, bytes, pointer);
	if (result == CUDA_SUCCESS)
		*pitch = (width + granule - 1) / granule * granule;
	return result;
}

/* --- freeing ----------------------------------------------------------------------------------- */

/* With the lock: take a slab out of the list. */
static void unlist(const struct piece *piece)
{
	struct piece **at = pieces_slabs();
	while (*at && *at != piece)
		at = &(*at)->next_slab;
	if (*at)
		*at = piece->next_slab;
}

/* With the lock: the piece is out of sight. */
static void retire(struct piece *piece)
{
	piece->is_ready = false;
	piece->asked = 0;
	if (piece->slab)
		unlist(piece);
}

static void end(struct piece *piece)
{
	if (!piece->is_fixed)
		session_count_movable(-(int64_t)piece->bytes);
	piece_end(piece);
}

/* Free the allocation's place, and with the last one its piece. */
static void vacate(CUdeviceptr address)
{
	pieces_lock();
	struct piece *piece = piece_at(address);
	bool is_empty = piece && piece->is_ready; /* else another thread ended the context meanwhile */
	if (is_empty && piece->slab) {
		slab_give(piece->slab, (uint32_t)((address - piece->address) / SLAB_STEP));
		is_empty = piece->slab->used == 0;
	}
	if (is_empty)
		retire(piece);
	pieces_unlock();
	if (is_empty)
		end(piece);
}

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
		vacate(allocation->key);
	return allocation_freed(&allocated_pointers, allocation, result);
}

/* Wait until the GPU has done what the current context gave it, without touching any capture: only
 * cuMemFree does that. */
static void wait_for_context(CUcontext context)
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
		wait_for_context(allocation->context);
		vacate(allocation->key);
	}
	return allocation_freed(&allocated_pointers, allocation, result);
}

/* --- contexts that end ------------------------------------------------------------------------- */

/* With the lock: set who ends the pieces of a context, or of whoever ended it before. */
static void mark(CUcontext context, const void *from, const void *by)
{
	if (!pieces_are_there())
		return;
	pieces_lock();
	for (struct piece *piece = piece_from(0); piece;
	     piece = piece_from(piece->address + piece->bytes))
		if (piece->ending == from && (!context || piece->context == context))
			piece->ending = by;
	pieces_unlock();
}

void swappable_context_ending(CUcontext context, const void *by)
{
	mark(context, NULL, by);
}

void swappable_context_stays(const void *by)
{
	mark(NULL, by, NULL);
}

static struct piece *take_ended(const void *by)
{
	pieces_lock();
	struct piece *piece = piece_from(0);
	while (piece && !(piece->ending == by && piece->is_ready))
		piece = piece_from(piece->address + piece->bytes);
	if (piece)
		retire(piece);
	pieces_unlock();
	return piece;
}

void swappable_context_ended(const void *by)
{
	struct piece *piece;
	while (pieces_are_there() && (piece = take_ended(by)))
		end(piece);
}

/* --- questions --------------------------------------------------------------------------------- */

bool swappable_find(CUdeviceptr address, struct swappable_view *out)
{
	if (!pieces_have(address))
		return false;
	pieces_lock();
	const struct piece *piece = piece_at(address);
	bool found = piece && piece->is_ready;
	if (found) {
		*out = (struct swappable_view){.base = piece->address,
		                               .bytes = piece->asked,
		                               .shadow = piece->shadow,
		                               .piece = {piece->address, piece->bytes}};
		uint32_t start = piece->slab ? slab_find(piece->slab, address - piece->address) : 0;
		if (piece->slab && start != SLAB_NOWHERE) {
			out->base += (uint64_t)start * SLAB_STEP;
			out->bytes = piece->slab->at[start].bytes;
			out->shadow = piece->slab->at[start].shadow;
		}
		found = address - out->base < out->bytes;
	}
	pieces_unlock();
	return found;
}

CUdeviceptr swappable_driver_address(CUdeviceptr address)
{
	struct swappable_view view;
	if (!pieces_have(address))
		return address;
	return swappable_find(address, &view) ? view.shadow : UNKNOWN_ADDRESS;
}

CUdeviceptr swappable_unknown(CUdeviceptr address)
{
	return pieces_have(address) ? UNKNOWN_ADDRESS : address;
}

uint64_t swappable_block_id(CUdeviceptr address)
{
	unsigned long long id = 0;
	pieces_lock();
	struct piece *piece = piece_at(address);
	uint64_t known = piece ? piece->block_id : 0;
	pieces_unlock();
	if (known || REAL(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address) !=
	                 CUDA_SUCCESS)
		return known;
	pieces_lock();
	if ((piece = piece_at(address)) && !piece->block_id)
		piece->block_id = id;
	pieces_unlock();
	return id;
}

void swappable_fix(CUdeviceptr address)
{
	pieces_lock();
	struct piece *piece = piece_at(address);
	uint64_t fixed = piece && piece->is_ready && !piece->is_fixed ? piece->bytes : 0;
	if (fixed)
		piece->is_fixed = true;
	pieces_unlock();
	session_count_movable(-(int64_t)fixed);
}
