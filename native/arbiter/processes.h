/* The processes of the grants: one slot each, from HELLO to death.
 *
 * Death is the pidfd's word. A dead process is `ending` while NVML still lists it on one of its
 * GPUs: see ending.h.
 *
 * A process that becomes another program (exec, by its image) holds nothing of the old one: its
 * slot begins again when the new one says HELLO, and is free when NVML lists it no more. A second
 * HELLO of the same program is a lost answer asked for again if the process holds nothing, and
 * refused otherwise: what is counted for it is in use.
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
	struct image image; /* as it said HELLO, or as the arbiter found it again */
	struct watch death; /* its pidfd; -1 when it is ending */
	bool ending;
	uint32_t owed;                       /* bit per slice: bytes not yet given back */
	uint64_t dead_at;                    /* as far as this arbiter knows */
	uint64_t deadline[ALIQUOT_MAX_GPUS]; /* by slice, while NVML cannot tell */
	bool said_late;                      /* that it takes long is in the log */
	char name[PROCESS_NAME_SIZE];
	/* measure.h's: a lower reading that waits to be seen again, the slices whose context is known,
	 * and those whose GPU listed it when asked last. */
	uint64_t lower[ALIQUOT_MAX_GPUS];
	uint32_t measured;
	uint32_t listed;
};

/* No lower reading waits. */
#define LOWER_NONE UINT64_MAX

/* Takes who->pidfd in either case. 0 and *slot, or why not. */
enum aliquot_refusal processes_join(struct grant *grant, const struct identity *who,
                                    int32_t inner_pid, uint32_t *slot);

/* Lets go of those that have become programs which use no GPU. */
void processes_drop_replaced(struct grant *grant);

/* The live process of that pid in the grant, or NULL. */
struct process *processes_find(struct grant *grant, int32_t pid);

/* The processes that `limits` names. 0, or -errno. */
int processes_recover(struct grant *grant);

/* Forgets them without touching the pages. */
void processes_release_all(struct grant *grant);

/* Gives back all that is counted for it in a slice. */
void processes_give_back(struct process *process, uint32_t slice);

/* Nothing is counted for it any more: the slot is free for another. */
void processes_leave(struct process *process);

/* slices[i].driver_bytes as the sum over its processes. */
void processes_sum_driver_bytes(struct grant *grant, uint32_t slice);

#endif
