/* Memory of the program that can leave the GPU: allocations in pieces, and what the move does with them.
 *
 * In a grant with swap=1 (layout.h) cuMemAlloc and its pitched kin get memory from here. A piece is
 * physical memory that can be exported, mapped once, at an address that is the program's for as long as
 * the allocation lives. Allocations of more than 1 MiB have a piece each; smaller ones share slabs.
 *
 * Shadows. Every answer about such a pointer is what the driver gives for cuMemAlloc, because the driver
 * gives it: beside each allocation lives its shadow, one byte that the driver's own cuMemAlloc made in the
 * same context. The shadow is made first, so the driver decides whether this thread may allocate now; what
 * the program asks about its pointer, the driver is asked about the shadow; and the shadow is freed first,
 * so cuMemFree waits for the GPU and treats captures as ever. Shadows take 512 bytes each and do not leave.
 */
#ifndef ALIQUOT_SWAPPABLE_H
#define ALIQUOT_SWAPPABLE_H

#include "allocation.h"
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

/* --- for the calls that allocate and free (memory.c) --------------------------------------------- */

/* cuMemAlloc and cuMemAllocPitch, with the driver's own functions, of memory that can leave the GPU; or,
 * on_host, of the host's (spill.h), which stays there. */
CUresult swappable_alloc(__typeof__(&cuMemAlloc_v2) real, bool on_host, CUdeviceptr *pointer,
                         size_t bytes);
CUresult swappable_alloc_pitch(__typeof__(&cuMemAllocPitch_v2) real, bool on_host,
                               CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                               unsigned element);

/* Free an allocation with a shadow that was taken out of its map. Returns the driver's answer about the
 * shadow. */
CUresult swappable_free(const struct allocation *allocation);
CUresult swappable_free_async(const struct allocation *allocation, __typeof__(&cuMemFreeAsync) real,
                              CUstream stream);

/* Wait until the GPU has done what the context gave it, as cuMemFree does, without touching any capture. */
void swappable_wait(CUcontext context);

#endif
