/* What every file of the stand-in sees: the driver's API as the driver itself declares it (all
 * versions, no macros that rename), and the functions behind the names. */
#ifndef ALIQUOT_HOOKED_H
#define ALIQUOT_HOOKED_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "forward.h"
#include "slots.h"

#endif
