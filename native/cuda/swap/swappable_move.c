/* What the move does with pieces: list them, export them, take their memory away and give it back. */
#include "pieces.h"
#include "swappable.h"

static bool can_leave(const struct piece *piece)
{
	return piece->is_ready && !piece->is_fixed;
}

size_t swappable_pieces(size_t from, struct swappable_piece *out, size_t most)
{
	size_t number = 0, count = 0;
	if (!pieces_are_there())
		return 0;
	pieces_lock();
	struct piece *piece = piece_from(0);
	for (; piece && count < most; piece = piece_from(piece->address + piece->bytes))
		if (can_leave(piece) && number++ >= from)
			out[count++] = (struct swappable_piece){piece->address, piece->bytes};
	pieces_unlock();
	return count;
}

/* The piece that starts at this address; NULL: there is none that can leave. It stays, since the program's
 * calls are held. */
static struct piece *find(CUdeviceptr address)
{
	if (!pieces_have(address))
		return NULL;
	pieces_lock();
	struct piece *piece = piece_at(address);
	pieces_unlock();
	return piece && piece->address == address && can_leave(piece) ? piece : NULL;
}

CUresult swappable_export(CUdeviceptr address, int *descriptor)
{
	const struct piece *piece = find(address);
	return piece && piece->handle ? piece_export(piece, descriptor) : CUDA_ERROR_INVALID_VALUE;
}

CUresult swappable_take_away(CUdeviceptr address)
{
	struct piece *piece = find(address);
	return piece && piece->handle ? piece_unmap(piece) : CUDA_ERROR_INVALID_VALUE;
}

CUresult swappable_bring_back(CUdeviceptr address, int *descriptor)
{
	struct piece *piece = find(address);
	if (!piece || piece->handle)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = piece_map(piece);
	if (result != CUDA_SUCCESS)
		return result;
	result = piece_export(piece, descriptor);
	if (result != CUDA_SUCCESS)
		piece_unmap(piece);
	return result;
}
