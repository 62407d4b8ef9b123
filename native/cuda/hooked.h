/* The driver's API with all versions of its functions and no renaming macros, and REAL(name), the
 * driver's own function. */
#ifndef ALIQUOT_HOOKED_H
#define ALIQUOT_HOOKED_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "forward.h"
#include "slots.h"

#endif
