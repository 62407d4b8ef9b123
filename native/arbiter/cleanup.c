#include "cleanup.h"

#include "log.h"
#include "processes.h"

#define POLL_NS (2 * MILLISECOND_NS)
#define LATE_POLL_NS (500 * MILLISECOND_NS)
#define TIMEOUT_NS (5 * SECOND_NS)

void cleanup_start(struct process *process)
{
	struct arbiter *arbiter = process->grant->arbiter;
	processes_drop_pages(process);
	atomic_store(&process->grant->limits->processes[process->slot].state, ALIQUOT_ENDING);
	grant_publish(process->grant, process->slot);
	loop_unwatch(&arbiter->loop, &process->death);
	process->ending = true;
	process->owed = (1u << process->grant->slice_count) - 1;
	process->dead_at = loop_now();
	for (uint32_t slice = 0; slice < process->grant->slice_count; slice++)
		process->deadline[slice] = process->dead_at + TIMEOUT_NS;
	arbiter->live_count--;
	arbiter->ending_count++;
	/* After this round of the loop: deaths that come together share one query of NVML. */
	loop_timer_set(&arbiter->loop, &arbiter->cleanup, loop_now());
}

static bool is_late(const struct process *process, uint64_t now)
{
	return now >= process->dead_at + TIMEOUT_NS;
}

static void log_late(struct process *process, uint32_t slice)
{
	if (process->logged_late)
		return;
	process->logged_late = true;
	log_event("grant %s: GPU %u still lists dead process %d: a child of it may be alive",
	          process->grant->name, process->grant->gpus[slice]->index, process->pid);
}

/* Gives back the bytes of a slice once its GPU no longer lists the process. `snapshot` NULL: NVML
 * could not tell. */
static void clean_slice(struct process *process, uint32_t slice,
                        const struct gpu_snapshot *snapshot)
{
	uint64_t now = loop_now();
	bool late = is_late(process, now);
	if (snapshot && !gpu_client_find(snapshot, process->pid)) {
		processes_give_back(process, slice);
	} else if (snapshot && !(late && identity_is_reused(process->pid, process->start_time))) {
		process->deadline[slice] = now + TIMEOUT_NS;
		if (late)
			log_late(process, slice);
	} else if (now >= process->deadline[slice]) {
		/* NVML knows clients by pid: it says nothing of a process whose pid is in use again. */
		log_event("grant %s: NVML cannot tell whether GPU %u lists process %d, dead for 5 s: "
		          "giving its bytes back",
		          process->grant->name, process->grant->gpus[slice]->index, process->pid);
		processes_give_back(process, slice);
	}
}

/* Cleans up what dead processes have on the GPU; whether some of it is left. `snapshot` NULL: there
 * is no new one. */
static bool clean_gpu(struct arbiter *arbiter, const struct gpu *gpu,
                      const struct gpu_snapshot *snapshot)
{
	bool left = false;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		for (uint32_t i = 0; i < grant->slice_count; i++) {
			for (uint32_t slot = 0; grant->gpus[i] == gpu && slot < grant->process_end; slot++) {
				struct process *process = grant->processes[slot];
				if (!process || !process->ending || !(process->owed & 1u << i))
					continue;
				bool is_newer = snapshot && snapshot->told &&
				                snapshot->asked_at >= process->dead_at;
				clean_slice(process, i, is_newer ? snapshot : NULL);
				left = left || process->owed & 1u << i;
			}
		}
	}
	return left;
}

/* Frees the slots of processes whose bytes are all given back. A GPU that is gone holds nothing.
 * Returns whether a process is left that should be gone soon. */
static bool clean_grant(struct grant *grant)
{
	uint64_t now = loop_now();
	bool soon = false;
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		struct process *process = grant->processes[slot];
		if (!process || !process->ending)
			continue;
		for (uint32_t i = 0; i < grant->slice_count; i++)
			if (!grant->gpus[i] && process->owed & 1u << i)
				processes_give_back(process, i);
		if (process->owed) {
			soon = soon || !is_late(process, now);
			continue;
		}
		log_event("grant %s: all memory of process %d is given back (slot %u)", grant->name,
		          process->pid, slot);
		processes_leave(process);
	}
	grant->processes_left(grant);
	return soon;
}

/* Returns as clean_grant does, for all grants. */
static bool clean_grants(struct arbiter *arbiter)
{
	bool soon = false;
	for (struct grant *grant = arbiter->grants, *next; grant; grant = next) {
		next = grant->next;
		soon = clean_grant(grant) || soon;
	}
	return soon;
}

void cleanup_on_snapshot(struct arbiter *arbiter, unsigned gpu)
{
	if (!arbiter->ending_count)
		return;
	clean_gpu(arbiter, &arbiter->nvml.gpus[gpu], observer_latest(&arbiter->observer, gpu));
	clean_grants(arbiter);
}

void cleanup_on_timer(struct timer *timer)
{
	struct arbiter *arbiter = CONTAINER(timer, struct arbiter, cleanup);
	uint64_t wanted = 0;
	for (unsigned i = 0; i < arbiter->nvml.gpu_count; i++)
		if (clean_gpu(arbiter, &arbiter->nvml.gpus[i], NULL))
			wanted |= UINT64_C(1) << i;
	bool soon = clean_grants(arbiter);
	if (wanted)
		observer_want(&arbiter->observer, wanted);
	if (arbiter->ending_count)
		loop_timer_set(&arbiter->loop, timer, loop_now() + (soon ? POLL_NS : LATE_POLL_NS));
}
