#include "findings.h"

#include "log.h"
#include "processes.h"

/* At most one log line about fallbacks of a grant in this time. */
#define FALLBACK_LOG_NS SECOND_NS

static uint32_t gates_of(const struct process *process, uint32_t slice)
{
	if (!process || !process->pages.work)
		return ALIQUOT_GATES_UNTRIED;
	return atomic_load(&process->pages.work[slice].gates);
}

static uint32_t why_of(const struct process *process, uint32_t slice)
{
	return atomic_load(&process->pages.work[slice].why);
}

/* What a process reports of the gates of a GPU counts until another process reports something else. */
static void check_gates(struct process *process, uint32_t slice)
{
	struct gpu *gpu = process->grant->gpus[slice];
	uint32_t gates = gates_of(process, slice);
	if (!gpu || gates == process->gates[slice])
		return;
	process->gates[slice] = gates;
	if (gates != ALIQUOT_GATES_WORK && gates != ALIQUOT_GATES_FAIL)
		return;
	gpu->gates = gates;
	if (gates == ALIQUOT_GATES_FAIL)
		log_event("grant %s: gates fail for process %d on GPU %u (CUDA error %u): memory "
		          "limits only",
		          process->grant->name, process->pid, gpu->index, why_of(process, slice));
}

static void check_turns(struct grant *grant, uint32_t slice)
{
	struct findings *logged = &grant->findings;
	struct credit_figures figures;
	uint64_t now = loop_now();
	credit_read(grant, slice, &figures);
	bool silent = logged->fallback_at && now - logged->fallback_at < FALLBACK_LOG_NS;
	if (figures.turns.fallbacks != logged->fallbacks[slice] && !silent) {
		log_event("grant %s: process %d was late at the end of its turn on GPU %u: the others run "
		          "at the same time (%llu times so far)",
		          grant->name, figures.late_pid, grant->gpus[slice]->index,
		          (unsigned long long)figures.turns.fallbacks);
		logged->fallbacks[slice] = figures.turns.fallbacks;
		logged->fallback_at = now;
	}
	if (figures.exemptions != logged->exemptions[slice])
		log_event("grant %s was late too often on GPU %u: it is exempt from turns for a while",
		          grant->name, grant->gpus[slice]->index);
	logged->exemptions[slice] = figures.exemptions;
}

void findings_update(struct arbiter *arbiter)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		for (uint32_t i = 0; grant->limits && i < grant->slice_count; i++) {
			for (uint32_t slot = 0; slot < grant->process_end; slot++)
				if (grant->processes[slot])
					check_gates(grant->processes[slot], i);
			check_turns(grant, i);
		}
	}
}

enum aliquot_gates findings_gates(const struct grant *grant, uint32_t slice, uint32_t *why)
{
	enum aliquot_gates found = ALIQUOT_GATES_UNTRIED;
	*why = 0;
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		const struct process *process = grant->processes[slot];
		uint32_t gates = gates_of(process, slice);
		if (gates == ALIQUOT_GATES_FAIL) {
			*why = why_of(process, slice);
			return ALIQUOT_GATES_FAIL;
		}
		if (gates == ALIQUOT_GATES_WORK)
			found = ALIQUOT_GATES_WORK;
	}
	return found;
}
