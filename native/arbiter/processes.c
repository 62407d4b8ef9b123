#include "processes.h"

#include "aliquot/ledger.h"
#include "log.h"
#include "movers.h"
#include "page_file.h"
#include "spill.h"

#include <stdlib.h>
#include <string.h>

struct aliquot_process *processes_page(const struct process *process)
{
	return &process->grant->limits->processes[process->slot];
}

void processes_sum_driver_bytes(struct grant *grant, uint32_t slice)
{
	uint64_t sum = grant->unjoined_bytes[slice];
	for (uint32_t slot = 0; slot < grant->process_end; slot++)
		if (grant->processes[slot])
			sum += atomic_load(&grant->limits->processes[slot].driver_bytes[slice]);
	atomic_store(&grant->limits->slices[slice].driver_bytes, sum);
	grant_publish(grant, GRANT_NO_SLOT);
}

static void forget(struct process *process, uint32_t slice)
{
	struct grant *grant = process->grant;
	if (grant_check(grant) && !ledger_forget(&grant->usage->slices[slice], process->slot))
		grant_break(grant, "usage", "its total changes all the time");
}

void processes_give_back(struct process *process, uint32_t slice)
{
	struct grant *grant = process->grant;
	forget(process, slice);
	if (slice == 0 && spill_limit(grant)) /* the driver gives both back at the same time */
		forget(process, ALIQUOT_HOST_SLICE);
	atomic_store(&processes_page(process)->driver_bytes[slice], 0);
	processes_sum_driver_bytes(grant, slice);
	grant_publish(grant, process->slot);
	process->lower[slice] = LOWER_NONE;
	process->owed &= ~(1u << slice);
}

void processes_clear_ties(struct process *process)
{
	struct grant *grant = process->grant;
	if (grant_check(grant))
		atomic_store(&grant->usage->slices[0].entries[process->slot].ties, 0);
}

void processes_give_all_back(struct process *process)
{
	for (uint32_t slice = 0; slice < process->grant->slice_count; slice++)
		processes_give_back(process, slice);
}

void processes_drop_pages(struct process *process)
{
	movers_forget(process);
	credit_remove_process(process);
	processes_page(process)->pages = 0;
	if (process->pages.credit)
		process_pages_remove(&process->pages, process->grant->pages);
	process->ungated[0] = 0;
}

void processes_cancel_measurement(struct measurement *measurement)
{
	struct process *process = measurement->process;
	if (!process)
		return;
	observer_cancel(&measurement->wait);
	struct measurement **link = &process->measurements;
	while (*link != measurement)
		link = &(*link)->next;
	*link = measurement->next;
	measurement->process = NULL;
}

/* The process is gone: nobody waits for its figures any more. */
static void end_measurements(struct process *process)
{
	while (process->measurements) {
		struct measurement *measurement = process->measurements;
		processes_cancel_measurement(measurement);
		if (measurement->done)
			measurement->done(measurement, true);
	}
}

void processes_discard(struct process *process)
{
	struct grant *grant = process->grant;
	struct arbiter *arbiter = grant->arbiter;
	end_measurements(process);
	credit_remove_process(process);
	process_pages_close(&process->pages); /* the files stay for the next arbiter */
	loop_unwatch(&arbiter->loop, &process->death);
	*(process->ending ? &arbiter->ending_count : &arbiter->live_count) -= 1;
	grant->processes[process->slot] = NULL;
	grant->process_count--;
	while (grant->process_end && !grant->processes[grant->process_end - 1])
		grant->process_end--;
	loop_free_later(&arbiter->loop, process);
}

void processes_leave(struct process *process)
{
	atomic_store(&processes_page(process)->state, ALIQUOT_FREE);
	processes_drop_pages(process);
	grant_publish(process->grant, process->slot);
	processes_discard(process);
}

struct process *processes_add(struct grant *grant, uint32_t slot, int32_t pid, uint64_t start_time,
                              void (*on_death)(struct watch *watch, uint32_t events))
{
	struct process *process = calloc(1, sizeof(*process));
	if (!process)
		return NULL;
	process->grant = grant;
	process->slot = slot;
	process->pid = pid;
	process->start_time = start_time;
	process->death = (struct watch){.fd = -1, .ready = on_death};
	memset(process->lower, 0xff, sizeof(process->lower));
	identity_name(pid, process->name);
	grant->processes[slot] = process;
	grant->process_count++;
	if (grant->process_end <= slot)
		grant->process_end = slot + 1;
	grant->arbiter->live_count++;
	return process;
}

bool processes_is_off_the_gpus(const struct process *process, uint64_t since)
{
	struct grant *grant = process->grant;
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		if (!grant->gpus[i])
			continue;
		const struct gpu_snapshot *snapshot = observer_latest(&grant->arbiter->observer,
		                                                      grant_gpu_number(grant, i));
		if (!snapshot || !snapshot->told || snapshot->asked_at < since ||
		    gpu_client_find(snapshot, process->pid))
			return false;
	}
	return true;
}

void processes_trim_files(struct grant *grant)
{
	if (grant->usage_fd >= 0 && page_file_trim(grant->usage_fd, sizeof(struct aliquot_usage)))
		grant_break(grant, "usage", "a program made the file longer");
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		const struct process *process = grant->processes[slot];
		if (process && process->pages.credit && process_pages_trim(&process->pages, grant->pages))
			grant_break(grant, "work", "a program made the file longer");
	}
}

void processes_drop_replaced(struct grant *grant)
{
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		struct process *process = grant->processes[slot];
		bool is_listed = process && process->listed && grant_state(grant) == ALIQUOT_GRANT_ACTIVE;
		if (!process || process->ending || is_listed) /* others are not measured: it may be old */
			continue;
		/* First the image, then NVML: what NVML no longer lists belonged to the old program. */
		if (!process->replaced_at) {
			struct image image = identity_image(process->pid);
			if (identity_is_other_image(&process->image, &image))
				process->replaced_at = loop_now();
		}
		if (!process->replaced_at || !processes_is_off_the_gpus(process, process->replaced_at))
			continue;
		log_event("grant %s: process %d now runs a program that uses no GPU (slot %u)", grant->name,
		          process->pid, slot);
		processes_give_all_back(process);
		processes_leave(process);
	}
	grant->processes_left(grant);
}

void processes_look_at_state(struct process *process)
{
	bool was = process->stopped;
	uint64_t before = process->cpu_ticks;
	process->stopped = identity_is_stopped(process->pid, &process->cpu_ticks);
	if (process->stopped &&
	    (!was || process->cpu_ticks != before)) /* it may have run since the last look */
		process->stopped_since = loop_now();
	credit_set_stopped(process, process->stopped);
}

struct process *processes_find(struct grant *grant, int32_t pid)
{
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		struct process *process = grant->processes[slot];
		if (process && !process->ending && process->pid == pid)
			return process;
	}
	return NULL;
}

void processes_discard_all(struct grant *grant)
{
	for (uint32_t slot = 0; slot < ALIQUOT_MAX_PROCESSES; slot++)
		if (grant->processes[slot])
			processes_discard(grant->processes[slot]);
}
