#include "findings.h"

#include "log.h"
#include "processes.h"

/* Each grant's lateness is told at most that often. */
#define FALLBACK_TOLD_NS SECOND_NS

static uint32_t gates_of(const struct process *process, uint32_t slice)
{
	if (!process || !process->kept)
		return ALIQUOT_GATES_UNTRIED;
	return atomic_load(&process->kept->pair.work[slice].gates);
}

static uint32_t why_of(const struct process *process, uint32_t slice)
{
	return atomic_load(&process->kept->pair.work[slice].why);
}

/* A process's word about the gates of a GPU; it stands until another process says otherwise. */
static void look_at_gates(struct process *process, uint32_t slice)
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
		log_event("grant %s: process %d has no gates on GPU %u (the driver says %u): memory "
		          "limits only",
		          process->grant->name, process->pid, gpu->index, why_of(process, slice));
}

static void look_at_turns(struct grant *grant, uint32_t slice)
{
	struct findings *told = &grant->findings;
	struct credit_figures figures;
	uint64_t now = loop_now();
	credit_read(grant, slice, &figures);
	bool silent = told->fallback_at && now - told->fallback_at < FALLBACK_TOLD_NS;
	if (figures.turns.fallbacks != told->fallbacks[slice] && !silent) {
		log_event("grant %s: process %d was late at the end of its turn on GPU %u: the others go "
		          "on beside it (%llu times so far)",
		          grant->name, figures.culprit, grant->gpus[slice]->index,
		          (unsigned long long)figures.turns.fallbacks);
		told->fallbacks[slice] = figures.turns.fallbacks;
		told->fallback_at = now;
	}
	if (figures.exemptions != told->exemptions[slice])
		log_event("grant %s was late too often on GPU %u: its gates stand open for a while",
		          grant->name, grant->gpus[slice]->index);
	told->exemptions[slice] = figures.exemptions;
}

void findings_look(struct arbiter *arbiter)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		for (uint32_t i = 0; grant->limits && i < grant->slice_count; i++) {
			for (uint32_t slot = 0; slot < grant->process_end; slot++)
				if (grant->processes[slot])
					look_at_gates(grant->processes[slot], i);
			look_at_turns(grant, i);
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
