/* Copies and fills: one form for all copies (CUDA_MEMCPY3D), one for all fills.
 *
 * A one-dimensional copy is a copy of one row. copy_place turns each side into a host address with a
 * pitch when the program submits the copy; after that a copy is plain memory traffic.
 */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "cuda/stream/stream.h"

#include <stdlib.h>

/* One side of a copy: its first byte, and the distance between its rows and between its planes. */
struct copy_side {
	char *base;
	size_t pitch, plane;
};

/* transfer.c. Precondition of the first two: copy_place has run. They need no lock. */
struct copy_side copy_source(const CUDA_MEMCPY3D *copy);
struct copy_side copy_target(const CUDA_MEMCPY3D *copy);
/* The bytes from the first to the last one of a copy's side, and of a fill. */
uint64_t copy_extent(const struct copy_side *side, const CUDA_MEMCPY3D *copy);
uint64_t fill_extent(const CUDA_MEMSET_NODE_PARAMS *fill);
void copy_run(const CUDA_MEMCPY3D *copy);
void fill_run(const CUDA_MEMSET_NODE_PARAMS *fill);

/* copy.c */
/* Replaces arrays and unified addresses by plain ones, and checks that the GPU may access them.
 * Precondition: the driver's lock is held. */
CUresult copy_place(CUDA_MEMCPY3D *copy);

/* Submits the copy to a stream; `wait`: returns when it has ended. Precondition: the lock is held. */
CUresult copy_submit(CUDA_MEMCPY3D copy, CUstream stream, bool wait);

/* Checks where a fill of at least one byte writes. Precondition: the lock is held. */
CUresult fill_check(const CUDA_MEMSET_NODE_PARAMS *fill);

/* A whole entry point: fills `height` rows of `width` elements. Takes the lock itself. */
CUresult fill_submit(CUdeviceptr to, size_t pitch, uint32_t value, uint32_t element, size_t width,
                     size_t height, CUstream stream);

/* cuda/memory/array.c: an array as plain memory */
void array_place(CUarray array, CUdeviceptr *base, size_t *pitch, size_t *height);

#endif
