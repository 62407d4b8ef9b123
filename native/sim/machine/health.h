/* The health of the simulated GPUs: the file `health` in the machine's folder, to which tests append.
 *
 *   GPU xid NUMBER   an Xid error: NVML reports an event, and nothing else
 *   GPU ecc COUNT    that many more uncorrected memory errors: an event, and the counters include them
 *   GPU lost         the GPU has fallen off the bus: every query about it returns GPU_IS_LOST
 *   GPU hangs        every query about it waits until the GPU recovers
 *   GPU action N     the driver asks for recovery action N (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION); before
 *                    the first such line it is a driver that cannot say
 *   GPU recovered    the GPU works, with its counters and its action at 0. A session of NVML that has
 *                    lost it does not find it again: nvmlShutdown and nvmlInit do
 *
 * GPU is its index. Each line must be appended in one write, and applies from then on. Without the file
 * all GPUs are healthy. Only NVML shows this: programs that use the GPU go on.
 */
#ifndef SIM_HEALTH_H
#define SIM_HEALTH_H

#include "machine.h"

enum health_kind {
	HEALTH_XID,
	HEALTH_ECC,
	HEALTH_LOST,
	HEALTH_HANGS,
	HEALTH_ACTION,
	HEALTH_RECOVERED
};

struct health_event {
	uint32_t gpu;
	enum health_kind kind;
	uint64_t number;
};

struct health {
	bool lost;
	bool hangs;
	uint64_t errors;   /* uncorrected memory errors */
	bool knows_action; /* the driver says which recovery action it needs */
	uint64_t action;
};

/* The state after all lines so far, for a session of NVML that began when the file had `since` bytes. */
struct health health_of(const struct machine *m, uint32_t gpu, uint64_t since);

/* The current size of the file: a position from which to read new lines. */
uint64_t health_end(const struct machine *m);

/* Reads the next line at *position, and moves *position after it; false: there is none yet. */
bool health_next(const struct machine *m, uint64_t *position, struct health_event *event);

#endif
