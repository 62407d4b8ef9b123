#include "processes.h"

#include "aliquot/ledger.h"
#include "log.h"
#include "measure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define ENDING_POLL_NS (2 * MILLISECOND_NS)
#define ENDING_PATIENCE_NS (5 * SECOND_NS)

static struct aliquot_process *page_of(const struct process *process)
{
	return &process->grant->limits->processes[process->slot];
}

void processes_sum_driver_bytes(struct grant *grant, uint32_t slice)
{
	uint64_t sum = 0;
	for (uint32_t slot = 0; slot < grant->process_end; slot++)
		if (grant->processes[slot])
			sum += atomic_load(&grant->limits->processes[slot].driver_bytes[slice]);
	atomic_store(&grant->limits->slices[slice].driver_bytes, sum);
}

static void give_back(struct process *process, uint32_t slice)
{
	struct grant *grant = process->grant;
	if (grants_check(grant))
		ledger_forget(&grant->usage->slices[slice], process->slot);
	atomic_store(&page_of(process)->driver_bytes[slice], 0);
	processes_sum_driver_bytes(grant, slice);
	process->lower[slice] = LOWER_NONE;
	process->owed &= ~(1u << slice);
}

static void give_all_back(struct process *process)
{
	for (uint32_t slice = 0; slice < process->grant->slice_count; slice++)
		give_back(process, slice);
}

static void discard(struct process *process)
{
	struct grant *grant = process->grant;
	struct arbiter *arbiter = grant->arbiter;
	loop_unwatch(&arbiter->loop, &process->death);
	*(process->ending ? &arbiter->ending_count : &arbiter->live_count) -= 1;
	grant->processes[process->slot] = NULL;
	grant->process_count--;
	while (grant->process_end && !grant->processes[grant->process_end - 1])
		grant->process_end--;
	loop_free_later(&arbiter->loop, process);
}

/* Nothing is counted for it any more: the slot is free for another. */
static void leave(struct process *process)
{
	atomic_store(&page_of(process)->state, ALIQUOT_FREE);
	discard(process);
}

static void begin_ending(struct process *process)
{
	struct arbiter *arbiter = process->grant->arbiter;
	atomic_store(&page_of(process)->state, ALIQUOT_ENDING);
	loop_unwatch(&arbiter->loop, &process->death);
	process->ending = true;
	process->owed = (1u << process->grant->slice_count) - 1;
	process->deadline = loop_now() + ENDING_PATIENCE_NS;
	arbiter->live_count--;
	arbiter->ending_count++;
	/* At once, but after this round: deaths that came together share one look at NVML. */
	loop_timer_set(&arbiter->loop, &arbiter->ending, loop_now());
}

static void on_death(struct watch *watch, uint32_t events)
{
	(void)events;
	struct process *process = CONTAINER(watch, struct process, death);
	log_event("grant %s: process %d is dead (slot %u)", process->grant->name, process->pid,
	          process->slot);
	begin_ending(process);
}

static struct process *add(struct grant *grant, uint32_t slot, int32_t pid, uint64_t start_time)
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

static bool is_same(const struct process *process, const struct identity *who)
{
	return !process->ending && process->pid == who->pid && process->start_time == who->start_time;
}

static void begin_again(struct process *process, int32_t inner_pid)
{
	log_event("grant %s: process %d became another program (slot %u)", process->grant->name,
	          process->pid, process->slot);
	give_all_back(process);
	process->measured = 0;
	identity_name(process->pid, process->name);
	page_of(process)->inner_pid = inner_pid;
}

/* By exec it may also have moved here from another grant. */
static void leave_other_grants(struct grant *grant, const struct identity *who)
{
	for (struct grant *other = grant->arbiter->grants, *next; other; other = next) {
		next = other->next;
		for (uint32_t slot = 0; other != grant && slot < other->process_end; slot++) {
			struct process *process = other->processes[slot];
			if (!process || !is_same(process, who))
				continue;
			log_event("grant %s: process %d went to grant %s", other->name, who->pid, grant->name);
			give_all_back(process);
			leave(process);
			grants_consider(other);
			break;
		}
	}
}

static void write_slot(struct process *process, int32_t inner_pid)
{
	struct aliquot_process *page = page_of(process);
	page->pid = process->pid;
	page->inner_pid = inner_pid;
	page->start_time = process->start_time;
	give_all_back(process); /* a free slot holds nothing, unless somebody scribbled in the ledger */
	atomic_store(&page->state, ALIQUOT_LIVE);
}

enum aliquot_refusal processes_join(struct grant *grant, const struct identity *who,
                                    int32_t inner_pid, uint32_t *slot)
{
	for (uint32_t i = 0; i < grant->process_end; i++) {
		struct process *process = grant->processes[i];
		if (!process || !is_same(process, who))
			continue;
		begin_again(process, inner_pid);
		close(who->pidfd);
		*slot = i;
		return 0;
	}
	leave_other_grants(grant, who);
	uint32_t free_slot = 0;
	while (free_slot < ALIQUOT_MAX_PROCESSES && grant->processes[free_slot])
		free_slot++;
	struct process *process = NULL;
	if (free_slot < ALIQUOT_MAX_PROCESSES)
		process = add(grant, free_slot, who->pid, who->start_time);
	if (!process) {
		close(who->pidfd);
		return ALIQUOT_REFUSED_FULL;
	}
	if (loop_watch(&grant->arbiter->loop, &process->death, who->pidfd, EPOLLIN)) {
		close(who->pidfd);
		discard(process);
		return ALIQUOT_REFUSED_FULL;
	}
	write_slot(process, inner_pid);
	measure_start(grant->arbiter);
	log_event("grant %s: process %d joined (slot %u)", grant->name, who->pid, free_slot);
	*slot = free_slot;
	return 0;
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

/* 0, or -errno: the kernel could not tell whether it lives. */
static int recover(struct grant *grant, uint32_t slot)
{
	struct aliquot_process *page = &grant->limits->processes[slot];
	uint32_t state = atomic_load(&page->state);
	if (state != ALIQUOT_LIVE && state != ALIQUOT_ENDING)
		return 0;
	int pidfd = state == ALIQUOT_LIVE ? identity_reopen(page->pid, page->start_time) : -ESRCH;
	if (pidfd < 0 && pidfd != -ESRCH)
		return pidfd;
	struct process *process = add(grant, slot, page->pid, page->start_time);
	if (!process) {
		if (pidfd >= 0)
			close(pidfd);
		return -ENOMEM;
	}
	if (pidfd < 0) {
		begin_ending(process);
		return 0;
	}
	/* What it held when its context was young is not known now. */
	process->measured = UINT32_MAX;
	int error = loop_watch(&grant->arbiter->loop, &process->death, pidfd, EPOLLIN);
	if (error)
		close(pidfd);
	return error;
}

int processes_recover(struct grant *grant)
{
	for (uint32_t slot = 0; slot < ALIQUOT_MAX_PROCESSES; slot++) {
		int error = recover(grant, slot);
		if (error)
			return error;
	}
	for (uint32_t slice = 0; slice < grant->slice_count; slice++)
		processes_sum_driver_bytes(grant, slice);
	measure_start(grant->arbiter);
	return 0;
}

void processes_release_all(struct grant *grant)
{
	for (uint32_t slot = 0; slot < ALIQUOT_MAX_PROCESSES; slot++)
		if (grant->processes[slot])
			discard(grant->processes[slot]);
}

/* Gives back what the GPU of `slice` holds no more. `clients` NULL: NVML could not tell. */
static void settle_slice(struct process *process, uint32_t slice, const struct gpu_clients *clients)
{
	if (clients && !gpu_client_find(clients, process->pid)) {
		give_back(process, slice);
	} else if (loop_now() >= process->deadline) {
		log_event("grant %s: GPU %u still lists process %d, dead for 5 s: its bytes are given back",
		          process->grant->name, process->grant->gpus[slice]->index, process->pid);
		give_back(process, slice);
	}
}

static void settle_gpu(struct arbiter *arbiter, struct gpu *gpu)
{
	struct gpu_clients clients;
	bool asked = false, told = false;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		for (uint32_t i = 0; i < grant->slice_count; i++) {
			for (uint32_t slot = 0; grant->gpus[i] == gpu && slot < grant->process_end; slot++) {
				struct process *process = grant->processes[slot];
				if (!process || !process->ending || !(process->owed & 1u << i))
					continue;
				if (!asked)
					told = nvml_clients(&arbiter->nvml, gpu, &clients);
				asked = true;
				settle_slice(process, i, told ? &clients : NULL);
			}
		}
	}
}

/* Frees the slots of those that nothing is owed for; a GPU that is gone holds nothing. */
static void settle_grant(struct grant *grant)
{
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		struct process *process = grant->processes[slot];
		if (!process || !process->ending)
			continue;
		for (uint32_t i = 0; i < grant->slice_count; i++)
			if (!grant->gpus[i] && process->owed & 1u << i)
				give_back(process, i);
		if (process->owed)
			continue;
		log_event("grant %s: all that process %d held is given back (slot %u)", grant->name,
		          process->pid, slot);
		leave(process);
	}
	grants_consider(grant);
}

void processes_on_ending_timer(struct timer *timer)
{
	struct arbiter *arbiter = CONTAINER(timer, struct arbiter, ending);
	for (unsigned i = 0; i < arbiter->nvml.gpu_count; i++)
		settle_gpu(arbiter, &arbiter->nvml.gpus[i]);
	for (struct grant *grant = arbiter->grants, *next; grant; grant = next) {
		next = grant->next;
		settle_grant(grant);
	}
	if (arbiter->ending_count)
		loop_timer_set(&arbiter->loop, timer, loop_now() + ENDING_POLL_NS);
}
