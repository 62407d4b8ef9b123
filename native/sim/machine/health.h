/* The health of the simulated GPUs: the file `health` in the machine's folder, to which tests append.
 *
 *   GPU xid NUMBER   an Xid error: NVML reports an event, and nothing else
 *   GPU ecc COUNT    that many more uncorrected memory errors: an event, and the counters include them
 *   GPU lost         the GPU has fallen off the bus: every query about it returns GPU_IS_LOST
 *   GPU recovered    the GPU is back, with its counters at 0
 *
 * GPU is its index. Each line must be appended in one write, and applies from then on. Without the file
 * all GPUs are healthy. Only NVML shows this: programs that use the GPU go on.
 */
#ifndef SIM_HEALTH_H
#define SIM_HEALTH_H

#include "machine.h"

enum health_kind { HEALTH_XID, HEALTH_ECC, HEALTH_LOST, HEALTH_RECOVERED };

struct health_event {
	uint32_t gpu;
	enum health_kind kind;
	uint64_t number;
};

struct health {
	bool lost;
	uint64_t errors; /* uncorrected memory errors */
};

/* The state after all lines so far. */
struct health health_of(const struct machine *m, uint32_t gpu);

/* The current size of the file: a position from which to read new lines. */
uint64_t health_end(const struct machine *m);

/* Reads the next line at *position, and moves *position after it; false: there is none yet. */
bool health_next(const struct machine *m, uint64_t *position, struct health_event *event);

#endif
