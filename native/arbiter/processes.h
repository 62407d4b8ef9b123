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
 * Each HELLO gives new pages of credit and work, since what is on the old ones is another program's
 * or was never seen. They are dropped when the process is dead or has left.
 *
 * Guarantees: a slot is written before it is live and is free only when nothing is counted for it;
 * killed between any two steps, a recovered arbiter goes on from the slot's state.
 */
#ifndef ARBITER_PROCESSES_H
#define ARBITER_PROCESSES_H

#include "aliquot/protocol.h"
#include "grants.h"
#include "keeper.h"

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
	/* Its pages, and its part in the turns. NULL: there were none to give, or they went with an
	 * earlier arbiter and its parent; nobody gates it then. */
	struct kept *kept;
	struct credit_process *credit;
	uint32_t gates[ALIQUOT_MAX_GPUS]; /* findings.h's: what `work` said when looked at last */
};

/* What a process that has joined is given. */
struct seat {
	uint32_t slot;
	struct pair_fds pages; /* the caller's to close */
};

/* No lower reading waits. */
#define LOWER_NONE UINT64_MAX

/* Takes who->pidfd in either case. 0 and *seat; or why not, with *error -errno where that tells more
 * than the refusal. */
enum aliquot_refusal processes_join(struct grant *grant, const struct identity *who,
                                    int32_t inner_pid, struct seat *seat, int *error);

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

/* It takes no more turns, and its gates stand open: it is dead, or its program is. */
void processes_drop_pages(struct process *process);

/* Nothing is counted for it any more: the slot is free for another. */
void processes_leave(struct process *process);

/* slices[i].driver_bytes as the sum over its processes. */
void processes_sum_driver_bytes(struct grant *grant, uint32_t slice);

#endif
