/* Physical memory by handle (cuMemCreate), as the calls for arrays, contexts and ranges see it. */
#ifndef ALIQUOT_PHYSICAL_H
#define ALIQUOT_PHYSICAL_H

#include "hooked.h"

/* An array is destroyed, or a context with all its arrays: what was mapped into them is not any more. */
void physical_array_ended(const void *array);
void physical_context_ended(CUcontext context);

/* A descriptor of the memory that is mapped in this range was made. */
void physical_range_exported(CUdeviceptr address, size_t bytes, int descriptor);

#endif
