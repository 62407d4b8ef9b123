#include "processes.h"

#include "aliquot/ledger.h"
#include "ending.h"
#include "log.h"
#include "measure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

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

void processes_give_back(struct process *process, uint32_t slice)
{
	struct grant *grant = process->grant;
	if (grants_check(grant))
		ledger_forget(&grant->usage->slices[slice], process->slot);
	atomic_store(&page_of(process)->driver_bytes[slice], 0);
	processes_sum_driver_bytes(grant, slice);
	process->lower[slice] = LOWER_NONE;
	process->owed &= ~(1u << slice);
}

/* The slot is another program's: what ties it is nobody's any more. */
static void untie(struct process *process)
{
	struct grant *grant = process->grant;
	if (grants_check(grant))
		atomic_store(&grant->usage->slices[0].entries[process->slot].ties, 0);
}

static void give_all_back(struct process *process)
{
	for (uint32_t slice = 0; slice < process->grant->slice_count; slice++)
		processes_give_back(process, slice);
}

/* Out of the turns. Its pages stay kept for an arbiter that comes after this one. */
static void stop_gating(struct process *process)
{
	credit_remove_process(process);
	process->kept = NULL;
}

void processes_drop_pages(struct process *process)
{
	struct kept *kept = process->kept;
	stop_gating(process);
	if (kept)
		keeper_drop(process->grant->arbiter->keeper, kept);
}

static void discard(struct process *process)
{
	struct grant *grant = process->grant;
	struct arbiter *arbiter = grant->arbiter;
	stop_gating(process);
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
	atomic_store(&page_of(process)->state, ALIQUOT_FREE);
	processes_drop_pages(process);
	discard(process);
}

static void on_death(struct watch *watch, uint32_t events)
{
	(void)events;
	struct process *process = CONTAINER(watch, struct process, death);
	log_event("grant %s: process %d is dead (slot %u)", process->grant->name, process->pid,
	          process->slot);
	ending_begin(process);
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

/* Whether NVML says that none of the grant's GPUs has anything of it. */
static bool is_off_the_gpus(const struct process *process)
{
	struct grant *grant = process->grant;
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct gpu_clients clients;
		if (!grant->gpus[i])
			continue;
		if (!nvml_clients(&grant->arbiter->nvml, grant->gpus[i], &clients) ||
		    gpu_client_find(&clients, process->pid))
			return false;
	}
	return true;
}

static bool holds_nothing(const struct process *process)
{
	struct grant *grant = process->grant;
	if (!grants_check(grant))
		return false;
	for (uint32_t slice = 0; slice < grant->slice_count; slice++)
		if (ledger_held(&grant->usage->slices[slice], process->slot))
			return false;
	return is_off_the_gpus(process);
}

static void begin_again(struct process *process)
{
	log_event("grant %s: process %d became another program (slot %u)", process->grant->name,
	          process->pid, process->slot);
	give_all_back(process);
	untie(process);
	process->measured = 0;
	identity_name(process->pid, process->name);
}

/* Where it is since an earlier HELLO, in whichever grant: it is in one at most. */
static struct process *find_earlier(struct arbiter *arbiter, const struct identity *who)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		for (uint32_t slot = 0; slot < grant->process_end; slot++)
			if (grant->processes[slot] && is_same(grant->processes[slot], who))
				return grant->processes[slot];
	return NULL;
}

/* Out of its grant, to the one named. */
static void move_away(struct process *process, const struct grant *to)
{
	struct grant *from = process->grant;
	log_event("grant %s: process %d went to grant %s", from->name, process->pid, to->name);
	give_all_back(process);
	processes_leave(process);
	grants_consider(from);
}

static void write_slot(struct process *process, int32_t inner_pid)
{
	struct aliquot_process *page = page_of(process);
	page->pid = process->pid;
	page->inner_pid = inner_pid;
	page->start_time = process->start_time;
	give_all_back(process); /* a free slot holds nothing, unless somebody scribbled in the ledger */
	untie(process);
	atomic_store(&page->state, ALIQUOT_LIVE);
}

/* A process that is in no grant. NULL: there is no room for it. */
static struct process *join_anew(struct grant *grant, const struct identity *who, int32_t inner_pid)
{
	uint32_t slot = 0;
	while (slot < ALIQUOT_MAX_PROCESSES && grant->processes[slot])
		slot++;
	struct process *process = NULL;
	if (slot < ALIQUOT_MAX_PROCESSES)
		process = add(grant, slot, who->pid, who->start_time);
	if (!process) {
		close(who->pidfd);
		return NULL;
	}
	if (loop_watch(&grant->arbiter->loop, &process->death, who->pidfd, EPOLLIN)) {
		close(who->pidfd);
		discard(process);
		return NULL;
	}
	process->image = who->image;
	write_slot(process, inner_pid);
	measure_start(grant->arbiter);
	log_event("grant %s: process %d joined (slot %u)", grant->name, who->pid, slot);
	return process;
}

static struct keeping keeping_of(const struct process *process)
{
	struct keeping whose = {
		.slot = process->slot,
		.pid = process->pid,
		.start_time = process->start_time,
	};
	memcpy(whose.grant, process->grant->name, sizeof(whose.grant));
	return whose;
}

/* New pages in place of those it had. 0, or -errno: it has none. */
static int give_pages(struct process *process, struct pair_fds *fds)
{
	struct grant *grant = process->grant;
	struct keeping whose = keeping_of(process);
	processes_drop_pages(process);
	memset(process->gates, 0, sizeof(process->gates));
	int error = keeper_make(grant->arbiter->keeper, &whose, grant->slice_count, &process->kept,
	                        fds);
	if (error)
		return error;
	error = credit_add_process(process);
	if (error) {
		pair_close(fds);
		processes_drop_pages(process);
	}
	return error;
}

/* The same process again, as another program or because its answer was lost. */
static void join_again(struct process *process, const struct identity *who, int32_t inner_pid)
{
	close(who->pidfd);
	if (identity_is_other_image(&process->image, &who->image))
		begin_again(process);
	process->image = who->image;
	page_of(process)->inner_pid = inner_pid;
}

enum aliquot_refusal processes_join(struct grant *grant, const struct identity *who,
                                    int32_t inner_pid, struct seat *seat, int *error)
{
	struct process *earlier = find_earlier(grant->arbiter, who), *process = NULL;
	bool is_other = earlier && identity_is_other_image(&earlier->image, &who->image);
	*error = 0;
	if (earlier && !is_other && !holds_nothing(earlier)) {
		log_event("grant %s: process %d refused: it is in grant %s already", grant->name, who->pid,
		          earlier->grant->name);
		close(who->pidfd);
		return ALIQUOT_REFUSED_TWICE;
	}
	if (earlier && earlier->grant == grant) {
		process = earlier;
		join_again(process, who, inner_pid);
	} else {
		if (earlier)
			move_away(earlier, grant);
		process = join_anew(grant, who, inner_pid);
		if (!process)
			return ALIQUOT_REFUSED_FULL;
	}
	*error = give_pages(process, &seat->pages);
	if (*error) {
		log_event("grant %s: no pages for process %d: %s", grant->name, who->pid,
		          strerror(-*error));
		return ALIQUOT_REFUSED_FULL;
	}
	/* A child of the old program may keep its memory on the GPU: that counts here from now on. */
	if (is_other)
		measure_process(process, false, 0);
	seat->slot = process->slot;
	return 0;
}

void processes_drop_replaced(struct grant *grant)
{
	for (uint32_t slot = 0; slot < grant->process_end; slot++) {
		struct process *process = grant->processes[slot];
		if (!process || process->ending || process->listed)
			continue;
		/* First the image, then NVML: what it lists no more now is the old program's. */
		struct image image = identity_image(process->pid);
		if (!identity_is_other_image(&process->image, &image) || !is_off_the_gpus(process))
			continue;
		log_event("grant %s: process %d became another program, which uses no GPU (slot %u)",
		          grant->name, process->pid, slot);
		give_all_back(process);
		processes_leave(process);
	}
	grants_consider(grant);
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

/* The pages that an earlier arbiter gave it, from the parent's hands. 0, or -errno. */
static int find_pages(struct process *process)
{
	struct grant *grant = process->grant;
	struct keeping whose = keeping_of(process);
	process->kept = keeper_claim(grant->arbiter->keeper, &whose, grant->slice_count);
	if (process->kept)
		return credit_add_process(process);
	log_event("grant %s: the pages of process %d are lost: no turns for it", grant->name,
	          process->pid);
	return 0;
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
		ending_begin(process);
		return 0;
	}
	/* What it held when its context was young is not known now. */
	process->measured = UINT32_MAX;
	process->image = identity_image(process->pid);
	int error = loop_watch(&grant->arbiter->loop, &process->death, pidfd, EPOLLIN);
	if (error) {
		close(pidfd);
		return error;
	}
	return find_pages(process);
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
