/* Included by every file of the stand-in: NVML's API in all versions, and the real functions. */
#ifndef ALIQUOT_HOOKED_H
#define ALIQUOT_HOOKED_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "forward.h"
#include "slots.h"

#endif
