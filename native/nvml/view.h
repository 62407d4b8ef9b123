/* The pages of the grant, opened read-only by path, for a monitor such as nvidia-smi. A monitor does not
 * use the GPU and takes no slot. Nothing here writes. If the grant cannot be read it has no GPU. */
#ifndef ALIQUOT_VIEW_H
#define ALIQUOT_VIEW_H

#include "aliquot/layout.h"
#include "hooked.h"

#include <stdbool.h>

#define VIEW_NO_SLICE UINT32_MAX

struct view {
	const struct aliquot_limits *limits;
	const struct aliquot_usage *usage;
};

/* The pages, mapped once; NULL: there are none, and stderr says why. */
const struct view *view_open(void);

/* The slice of a device of the real library, or VIEW_NO_SLICE. */
uint32_t view_slice(nvmlDevice_t device);

/* The real library's device for a slice. */
nvmlReturn_t view_device(uint32_t slice, nvmlDevice_t *out);

/* Bytes of the slice that its programs and the driver use. */
uint64_t view_used(uint32_t slice);

/* Bytes of the slice that one process uses; 0 for a slot without a live process. */
uint64_t view_process_used(uint32_t slice, uint32_t slot);

/* The slot of a live process by its pid on the host; ALIQUOT_MAX_PROCESSES: none. */
uint32_t view_slot_of(int32_t pid);

#endif
