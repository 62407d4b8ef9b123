#include "places.h"

#include "page.h"
#include "pieces.h"
#include "session.h"
#include "spill.h"

#include <stdlib.h>

/* No memory of the driver's is here. */
#define UNKNOWN_ADDRESS ((CUdeviceptr)1)

/* --- places for allocations -------------------------------------------------------------------- */

/* With the lock. `model`: the kind of slab. */
static bool place_in_slab(struct piece *piece, const struct piece *model, CUdeviceptr shadow,
                          uint64_t bytes, CUdeviceptr *pointer)
{
	if (piece->context != model->context || piece->is_on_host != model->is_on_host || piece->ending)
		return false;
	uint32_t start = slab_take(piece->slab, bytes, shadow);
	if (start != SLAB_NOWHERE)
		*pointer = piece->address + (uint64_t)start * SLAB_STEP;
	return start != SLAB_NOWHERE;
}

static bool place_in_some_slab(const struct piece *model, CUdeviceptr shadow, uint64_t bytes,
                               CUdeviceptr *pointer)
{
	bool placed = false;
	if (!pieces_are_there())
		return false;
	pieces_lock();
	for (struct piece *piece = *pieces_slabs(); piece && !placed; piece = piece->next_slab)
		placed = place_in_slab(piece, model, shadow, bytes, pointer);
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
	if (piece->is_on_host)
		spill_count_pieces(1);
}

static uint64_t rounded(uint64_t bytes)
{
	return (bytes + PIECE_PAGE - 1) / PIECE_PAGE * PIECE_PAGE;
}

CUresult places_take(CUcontext context, CUdeviceptr shadow, uint64_t bytes, bool on_host,
                     CUdeviceptr *pointer)
{
	bool small = bytes <= PAGE_LARGEST;
	struct piece model = {.bytes = rounded(small ? SLAB_BYTES : bytes),
	                      .context = context,
	                      .is_on_host = on_host};
	CUresult result = REAL(cuCtxGetDevice)(&model.device);
	if (result != CUDA_SUCCESS || (small && place_in_some_slab(&model, shadow, bytes, pointer)))
		return result;
	struct slab *slab = small ? calloc(1, sizeof(*slab)) : NULL;
	if (small && !slab)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct piece *piece = piece_make(&model, &result);
	if (!piece) {
		free(slab);
		return result;
	}
	piece->slab = slab;
	publish(piece, shadow, bytes, pointer);
	return CUDA_SUCCESS;
}

/* --- freeing -------------------------------------------------------------------------------- */

/* With the lock: take a slab out of the list. */
static void unlist(const struct piece *piece)
{
	struct piece **at = pieces_slabs();
	while (*at && *at != piece)
		at = &(*at)->next_slab;
	if (*at)
		*at = piece->next_slab;
}

/* With the lock: the piece is out of sight. True: the caller ends it, and else who exports it now. */
static bool retire(struct piece *piece)
{
	piece->is_ready = false;
	piece->asked = 0;
	if (piece->slab)
		unlist(piece);
	return piece->exports == 0;
}

static void end(struct piece *piece)
{
	if (!piece->is_fixed)
		session_count_movable(-(int64_t)piece->bytes);
	if (piece->is_on_host)
		spill_count_pieces(-1);
	piece_end(piece);
}

/* Free the allocation's place, and with the last one its piece. */
void places_give(CUdeviceptr address)
{
	pieces_lock();
	struct piece *piece = piece_at(address);
	bool is_empty = piece && piece->is_ready; /* else another thread ended the context meanwhile */
	if (is_empty && piece->slab) {
		slab_give(piece->slab, (uint32_t)((address - piece->address) / SLAB_STEP));
		is_empty = piece->slab->used == 0;
	}
	bool is_ours = is_empty && retire(piece);
	pieces_unlock();
	if (is_ours)
		end(piece);
}

/* --- contexts that end ------------------------------------------------------------------------- */

/* Set which call ends the pieces of a context; a context of NULL: all that the call `from` was to end. */
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

void places_context_ending(CUcontext context, const void *by)
{
	mark(context, NULL, by);
}

void places_context_stays(const void *by)
{
	mark(NULL, by, NULL);
}

static struct piece *take_ended(const void *by)
{
	pieces_lock();
	struct piece *piece = piece_from(0);
	while (piece && !(piece->ending == by && piece->is_ready && retire(piece)))
		piece = piece_from(piece->address + piece->bytes);
	pieces_unlock();
	return piece;
}

void places_context_ended(const void *by)
{
	struct piece *piece;
	while (pieces_are_there() && (piece = take_ended(by)))
		end(piece);
}

/* --- questions --------------------------------------------------------------------------------- */

bool places_find(CUdeviceptr address, struct place *out)
{
	if (!pieces_have(address))
		return false;
	pieces_lock();
	const struct piece *piece = piece_at(address);
	bool found = piece && piece->is_ready;
	if (found) {
		*out = (struct place){.base = piece->address,
		                      .bytes = piece->asked,
		                      .shadow = piece->shadow,
		                      .piece = piece->address,
		                      .piece_bytes = piece->bytes,
		                      .context = piece->context,
		                      .is_on_host = piece->is_on_host};
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

CUdeviceptr places_driver_address(CUdeviceptr address)
{
	struct place view;
	if (!pieces_have(address))
		return address;
	return places_find(address, &view) ? view.shadow : UNKNOWN_ADDRESS;
}

CUdeviceptr places_unknown(CUdeviceptr address)
{
	return pieces_have(address) ? UNKNOWN_ADDRESS : address;
}

uint64_t places_block_id(CUdeviceptr address)
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

/* --- memory for others ------------------------------------------------------------------------- */

/* With the lock. Returns how many bytes are movable no longer. */
static uint64_t fix(struct piece *piece)
{
	uint64_t fixed = piece && piece->is_ready && !piece->is_fixed ? piece->bytes : 0;
	if (fixed)
		piece->is_fixed = true;
	return fixed;
}

void places_fix(CUdeviceptr address)
{
	pieces_lock();
	uint64_t fixed = fix(piece_at(address));
	pieces_unlock();
	session_count_movable(-(int64_t)fixed);
}

uint64_t places_share(CUdeviceptr address, uint64_t fresh)
{
	pieces_lock();
	struct piece *piece = piece_at(address);
	uint64_t fixed = fix(piece), key = 0;
	if (piece && piece->is_ready)
		key = piece->key = piece->key ? piece->key : fresh;
	pieces_unlock();
	session_count_movable(-(int64_t)fixed);
	return key;
}

CUresult places_export(CUdeviceptr address, uint64_t key, int *descriptor)
{
	if (!key || !pieces_have(address))
		return CUDA_ERROR_INVALID_VALUE;
	pieces_lock();
	struct piece *piece = piece_at(address);
	bool found = piece && piece->is_ready && piece->address == address && piece->key == key;
	if (found)
		piece->exports++;
	pieces_unlock();
	if (!found)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = piece_export(piece, descriptor);
	pieces_lock();
	bool is_ours = --piece->exports == 0 && !piece->is_ready;
	pieces_unlock();
	if (is_ours)
		end(piece);
	return result;
}
