/* How the simulated GPUs fare: the file `health` in the meeting place, which a test appends to.
 *
 *   GPU xid NUMBER   an Xid error: an event, and nothing else
 *   GPU ecc COUNT    so many more uncorrected memory errors: an event, and the counters show them
 *   GPU lost         it has fallen off the bus: every question about it is answered GPU_IS_LOST
 *   GPU well         it is back, with its counters at 0
 *
 * GPU is its index. Lines are appended whole, and each counts from then on; without the file all are
 * well. This is what NVML tells: programs that use the GPU go on.
 */
#ifndef SIM_HEALTH_H
#define SIM_HEALTH_H

#include "machine.h"

enum health_word { HEALTH_XID, HEALTH_ECC, HEALTH_LOST, HEALTH_WELL };

struct health_event {
	uint32_t gpu;
	enum health_word word;
	uint64_t number;
};

struct health {
	bool lost;
	uint64_t errors; /* uncorrected */
};

struct health health_of(const struct machine *m, uint32_t gpu);

/* Where the file ends now. */
uint64_t health_end(const struct machine *m);

/* The next line from *position on, which moves behind it; false: there is none yet. */
bool health_next(const struct machine *m, uint64_t *position, struct health_event *event);

#endif
