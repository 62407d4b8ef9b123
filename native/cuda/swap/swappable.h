/* Memory of the program that can leave the GPU: allocations in pieces, and what the move does with them.
 *
 * In a grant with swap=1 (layout.h) cuMemAlloc and its pitched kin get memory from here. A piece is
 * physical memory that can be exported, mapped once, at an address that is the program's for as long as
 * the allocation lives. Every answer about such a pointer is what the driver gives for cuMemAlloc.
 */
#ifndef ALIQUOT_SWAPPABLE_H
#define ALIQUOT_SWAPPABLE_H

#include "hooked.h"

#include <stdbool.h>
#include <stddef.h>

/* Whether this process's grant has swap=1. Precondition: the session is joined. */
bool swappable_is_on(void);

struct swappable_piece {
	CUdeviceptr address;
	uint64_t bytes;
};

/* The pieces that can leave, at most `most` of them from number `from` on; returns how many. Precondition
 * of this and all below: residence.h holds the program's calls. */
size_t swappable_pieces(size_t from, struct swappable_piece *out, size_t most);

/* A descriptor of the piece's memory, for the mover. */
CUresult swappable_export(CUdeviceptr address, int *descriptor);
/* Unmap the piece and release its memory; its address stays reserved. */
CUresult swappable_take_away(CUdeviceptr address);
/* Give the piece new memory at its address, and a descriptor of it for the mover. */
CUresult swappable_bring_back(CUdeviceptr address, int *descriptor);

#endif
