/* The grant as a monitor sees it: its pages, read-only, by path. A monitor is no GPU client and
 * takes no slot. Nothing here writes; a grant that cannot be read shows no GPU. */
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

/* The pages, mapped once; NULL: none, and why was said on stderr. */
const struct view *view_open(void);

/* Which slice a device of the real library is. */
uint32_t view_slice(nvmlDevice_t device);

/* The real library's device for a slice. */
nvmlReturn_t view_device(uint32_t slice, nvmlDevice_t *out);

/* What the slice's programs and the driver for them hold. */
uint64_t view_used(uint32_t slice);

/* What one process holds of a slice; 0 for a slot with no living process. */
uint64_t view_process_used(uint32_t slice, uint32_t slot);

/* The slot of a living process by its pid outside; ALIQUOT_MAX_PROCESSES: none. */
uint32_t view_slot_of(int32_t pid);

#endif
