/* The program's hint that memory shall be on the GPU: aliquot.worker.prefer.
 *
 * A program asks cuGetProcAddress for PREFER_NAME, which no driver has, and calls it with a pointer. Memory of
 * the host (spill.h) gets memory of the GPU at the same addresses, if the slice has room. Nothing else makes memory
 * move in a grant with `spill`.
 */
#ifndef ALIQUOT_PREFER_H
#define ALIQUOT_PREFER_H

#include "hooked.h"

#define PREFER_NAME "aliquotPrefer"

/* CUDA_SUCCESS: it is on the GPU now, or always was. CUDA_ERROR_OUT_OF_MEMORY: the slice has no room.
 * CUDA_ERROR_NOT_SUPPORTED: it is small, and shares its page. Precondition: no other thread uses it now. */
CUresult prefer_on_gpu(CUdeviceptr pointer);

#endif
