/* The processes of a grant, one slot each: what is counted for a slot, and how a process leaves it.
 *
 * joining.h puts processes into slots, cleanup.h follows dead ones. Each process has pages of credit
 * and work (process_pages.h); they are removed when it is dead or has left.
 *
 * Guarantees: a slot is written before it is live, and is free only when nothing is counted for it.
 * If the arbiter is killed between any two steps, the next one continues from the slot's state.
 */
#ifndef ARBITER_PROCESSES_H
#define ARBITER_PROCESSES_H

#include "grant.h"
#include "identity.h"
#include "process_pages.h"
#include "observer.h"

/* One measurement of a process (measure.h). It lies in the object that wants it. */
struct measurement {
	struct observer_wait wait;
	struct process *process;  /* NULL: none is under way */
	struct measurement *next; /* of the same process */
	bool is_new_context;
	uint64_t for_context;
	uint64_t begun_at;
	unsigned attempts;
	uint32_t unread;                   /* bit per slice */
	uint32_t risen;                    /* bit per slice: one answer has shown a rise */
	uint64_t before[ALIQUOT_MAX_GPUS]; /* bytes on the GPU by the ledger */
	uint64_t most[ALIQUOT_MAX_GPUS];   /* the same, the most seen */
	uint64_t driver[ALIQUOT_MAX_GPUS]; /* of those that have risen: the driver's bytes */
	/* Or NULL. `left`: the process has left its slot meanwhile. */
	void (*done)(struct measurement *measurement, bool left);
};

struct process {
	struct grant *grant;
	uint32_t slot;
	int32_t pid;
	uint64_t start_time;
	struct image image; /* when it sent HELLO, or when the arbiter recovered it */
	struct watch death; /* its pidfd; -1 when it is ending */
	bool ending;
	bool stopped;                        /* by a signal, when it was last looked at */
	uint64_t stopped_since;              /* the first such look since it last ran */
	uint64_t cpu_ticks;                  /* at that look */
	uint64_t killed_at;                  /* by the arbiter; 0: it was not */
	uint32_t owed;                       /* bit per slice: bytes not yet given back */
	uint64_t dead_at;                    /* when this arbiter learned of its death */
	uint64_t deadline[ALIQUOT_MAX_GPUS]; /* by slice, while NVML cannot tell */
	bool logged_late;                    /* the log says that cleaning up takes long */
	char name[PROCESS_NAME_SIZE];
	/* measure.h's: a lower reading that must be seen twice, the slices whose context size is known,
	 * those whose GPU listed the process in the last snapshot, the measurements that are under way,
	 * and the one that the timer begins. */
	uint64_t lower[ALIQUOT_MAX_GPUS];
	uint32_t measured;
	uint32_t listed;
	/* Its pages, and its part in the turns. NULL: there were none to give, or they could not be mapped
	 * again; then the process is not gated, and `ungated` says why. */
	struct process_pages pages;
	struct measurement *measurements;
	struct measurement regular;
	uint64_t replaced_at; /* when it was seen to run another program than it joined with; 0: not */
	struct credit_process *credit;
	char ungated[80];
	uint32_t gates[ALIQUOT_MAX_GPUS]; /* findings.h's: what `work` said at the last check */
};

/* No lower reading waits. */
#define LOWER_NONE UINT64_MAX

/* A new process in a free slot, without pages and not watched yet; NULL: out of memory. */
struct process *processes_add(struct grant *grant, uint32_t slot, int32_t pid, uint64_t start_time,
                              void (*on_death)(struct watch *watch, uint32_t events));

/* Looks whether a signal has stopped it, for the figures of its slices. */
void processes_look_at_state(struct process *process);

/* The live process of that pid in the grant, or NULL. */
struct process *processes_find(struct grant *grant, int32_t pid);

/* The process's entry in `limits`. */
struct aliquot_process *processes_page(const struct process *process);

/* Whether NVML listed it on none of the grant's GPUs, in snapshots that are newer than that time. */
bool processes_is_off_the_gpus(const struct process *process, uint64_t since);

/* Ends a measurement without its callback; does nothing if it is not under way. */
void processes_cancel_measurement(struct measurement *measurement);

/* Gives back all that is counted for it in a slice; in all slices. */
void processes_give_back(struct process *process, uint32_t slice);
void processes_give_all_back(struct process *process);

/* Clears what an earlier program in this slot recorded as a reason against freezing it. */
void processes_clear_ties(struct process *process);

/* Takes it out of the turns, opens its gates and removes its pages: the process, or its program, is
 * gone. */
void processes_drop_pages(struct process *process);

/* Frees the slot; nothing may be counted for it any more. */
void processes_leave(struct process *process);

/* Forgets the process; slot and pages stay as they are. */
void processes_discard(struct process *process);
void processes_discard_all(struct grant *grant);

/* Takes back what tenants added to files that they can write: nobody may fill the memory in which other
 * grants have theirs. That breaks the grant. */
void processes_trim_files(struct grant *grant);

/* Drops processes that have become a program which uses no GPU. */
void processes_drop_replaced(struct grant *grant);

/* Sets slices[i].driver_bytes to the sum over its processes, also those that have not joined. */
void processes_sum_driver_bytes(struct grant *grant, uint32_t slice);

#endif
