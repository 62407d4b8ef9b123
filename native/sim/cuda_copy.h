/* Copies and fills as they are asked for. See cuda_copy.c. */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "cuda_stream.h"

#include <stdlib.h>

/* Finds where both sides lie and checks them. Precondition: the driver's lock is held. */
CUresult copy_place(CUDA_MEMCPY3D *copy);

/* Asks a stream for the copy; waits for its end if told to. Precondition: the lock is held. */
CUresult copy_ask(CUDA_MEMCPY3D copy, CUstream stream, bool wait);

/* Checks where a fill goes, which is not nowhere. Precondition: the lock is held. */
CUresult set_check(const CUDA_MEMSET_NODE_PARAMS *set);

/* An entry point's work: a fill of `height` rows of `width` elements. Takes the lock itself. */
CUresult set_ask(CUdeviceptr to, size_t pitch, uint32_t value, uint32_t element, size_t width,
                 size_t height, CUstream stream);

/* cuda_array.c: an array's bytes as plain memory. */
void array_place(CUarray array, CUdeviceptr *base, size_t *pitch, size_t *height);

#endif
