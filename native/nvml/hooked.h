/* What every file of the stand-in sees: NVML's API in all its versions, and the functions behind. */
#ifndef ALIQUOT_HOOKED_H
#define ALIQUOT_HOOKED_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "forward.h"
#include "slots.h"

#endif
