/* The processes of the grants: one slot each, from HELLO to death.
 *
 * Death is the pidfd's word. A dead process is `ending` while NVML still lists it on one of its
 * GPUs; each slice gets its bytes back when its GPU lists it no more, and after 5 s in any case.
 *
 * A process that says HELLO again has become another program (exec): what the old one held is gone.
 *
 * Guarantees: a slot is written before it is live and is free only when nothing is counted for it;
 * killed between any two steps, a recovered arbiter goes on from the slot's state.
 */
#ifndef ARBITER_PROCESSES_H
#define ARBITER_PROCESSES_H

#include "aliquot/protocol.h"
#include "grants.h"

struct process {
	struct grant *grant;
	uint32_t slot;
	int32_t pid;
	uint64_t start_time;
	struct watch death; /* its pidfd; -1 when it is ending */
	bool ending;
	uint32_t owed; /* bit per slice: bytes not yet given back */
	uint64_t deadline;
	char name[PROCESS_NAME_SIZE];
	/* measure.h's: a lower reading that waits to be seen again, and the slices seen by NVML. */
	uint64_t lower[ALIQUOT_MAX_GPUS];
	uint32_t measured;
};

/* No lower reading waits. */
#define LOWER_NONE UINT64_MAX

/* Takes who->pidfd in either case. 0 and *slot, or why not. */
enum aliquot_refusal processes_join(struct grant *grant, const struct identity *who,
                                    int32_t inner_pid, uint32_t *slot);

/* The live process of that pid in the grant, or NULL. */
struct process *processes_find(struct grant *grant, int32_t pid);

/* The processes that `limits` names. 0, or -errno. */
int processes_recover(struct grant *grant);

/* Forgets them without touching the pages. */
void processes_release_all(struct grant *grant);

void processes_on_ending_timer(struct timer *timer);

/* slices[i].driver_bytes as the sum over its processes. */
void processes_sum_driver_bytes(struct grant *grant, uint32_t slice);

#endif
