#include "joining.h"

#include "aliquot/ledger.h"
#include "cleanup.h"
#include "grant_files.h"
#include "log.h"
#include "measure.h"
#include "unjoined.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static void on_death(struct watch *watch, uint32_t events)
{
	(void)events;
	struct process *process = CONTAINER(watch, struct process, death);
	log_event("grant %s: process %d has died (slot %u)", process->grant->name, process->pid,
	          process->slot);
	cleanup_start(process);
}

static bool is_same(const struct process *process, const struct identity *who)
{
	return !process->ending && process->pid == who->pid && process->start_time == who->start_time;
}

static bool has_allocated(const struct process *process)
{
	struct grant *grant = process->grant;
	if (!grant_check(grant))
		return true;
	for (uint32_t slice = 0; slice < grant->slice_count; slice++)
		if (ledger_held(&grant->usage->slices[slice], process->slot))
			return true;
	return false;
}

static void reset_for_exec(struct process *process)
{
	log_event("grant %s: process %d now runs another program (slot %u)", process->grant->name,
	          process->pid, process->slot);
	processes_give_all_back(process);
	processes_clear_ties(process);
	process->measured = 0;
	process->replaced_at = 0;
	identity_name(process->pid, process->name);
}

/* The process as it joined earlier, in whatever grant: it is in one at most. */
static struct process *find_earlier(struct arbiter *arbiter, const struct identity *who)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		for (uint32_t slot = 0; slot < grant->process_end; slot++)
			if (grant->processes[slot] && is_same(grant->processes[slot], who))
				return grant->processes[slot];
	return NULL;
}

/* Takes the process out of its grant, before it joins another. */
static void move_away(struct process *process, const struct grant *to)
{
	struct grant *from = process->grant;
	log_event("grant %s: process %d moved to grant %s", from->name, process->pid, to->name);
	processes_give_all_back(process);
	processes_leave(process);
	from->processes_left(from);
}

void joining_drop_old_program(const struct grant *grant, const struct identity *who)
{
	struct process *earlier = find_earlier(grant->arbiter, who);
	if (!earlier || !identity_is_other_image(&earlier->image, &who->image))
		return;
	log_event("grant %s: process %d runs another program, which waits to join (slot %u)",
	          earlier->grant->name, earlier->pid, earlier->slot);
	processes_give_all_back(earlier);
	processes_leave(earlier);
	/* The caller needs the grant. If nothing holds it any more, it ends at the next measurement. */
}

static void write_slot(struct process *process, int32_t inner_pid)
{
	struct aliquot_process *page = processes_page(process);
	page->pid = process->pid;
	page->inner_pid = inner_pid;
	page->start_time = process->start_time;
	processes_give_all_back(process); /* a free slot has nothing, unless a tenant wrote to it */
	processes_clear_ties(process);
	page->pages = 0;
	atomic_store(&page->state, ALIQUOT_LIVE);
	grant_publish(process->grant, process->slot);
}

/* A process that is in no grant yet. NULL: no slot is free. */
static struct process *join_new(struct grant *grant, const struct identity *who, int32_t inner_pid)
{
	uint32_t slot = 0;
	while (slot < ALIQUOT_MAX_PROCESSES && grant->processes[slot])
		slot++;
	struct process *process = NULL;
	if (slot < ALIQUOT_MAX_PROCESSES)
		process = processes_add(grant, slot, who->pid, who->start_time, on_death);
	if (!process) {
		close(who->pidfd);
		return NULL;
	}
	if (loop_watch(&grant->arbiter->loop, &process->death, who->pidfd, EPOLLIN)) {
		close(who->pidfd);
		processes_discard(process);
		return NULL;
	}
	process->image = who->image;
	write_slot(process, inner_pid);
	measure_start(grant->arbiter);
	unjoined_on_join(process);
	log_event("grant %s: process %d joined (slot %u)", grant->name, who->pid, slot);
	return process;
}

/* Replaces its pages by new ones. Only when the record names them does the process get them. 0, or
 * -errno: it has none. */
static int give_pages(struct process *process, struct process_page_fds *fds)
{
	struct grant *grant = process->grant;
	processes_drop_pages(process);
	memset(process->gates, 0, sizeof(process->gates));
	int error = process_pages_make(&process->pages, grant->pages, grant->last_pages + 1,
	                               grant->slice_count, fds);
	if (error)
		return error;
	grant->last_pages++;
	processes_page(process)->pages = process->pages.number;
	error = credit_add_process(process);
	if (error) {
		process_pages_close_fds(fds);
		processes_drop_pages(process);
	}
	return error;
}

/* The same process again: it runs another program, or our answer was lost. */
static void join_again(struct process *process, const struct identity *who, int32_t inner_pid)
{
	close(who->pidfd);
	if (identity_is_other_image(&process->image, &who->image))
		reset_for_exec(process);
	process->image = who->image;
	processes_page(process)->inner_pid = inner_pid;
	grant_publish(process->grant, process->slot);
}

struct process *joining_unclear(struct grant *grant, const struct identity *who)
{
	struct process *earlier = find_earlier(grant->arbiter, who);
	if (!earlier || identity_is_other_image(&earlier->image, &who->image) || has_allocated(earlier))
		return NULL;
	return earlier;
}

enum aliquot_refusal joining_join(struct grant *grant, const struct identity *who,
                                  int32_t inner_pid, uint64_t since, struct join_reply *reply,
                                  int *error)
{
	struct process *earlier = find_earlier(grant->arbiter, who), *process = NULL;
	bool is_other = earlier && identity_is_other_image(&earlier->image, &who->image);
	*error = 0;
	if (earlier && !is_other &&
	    (has_allocated(earlier) || !processes_is_off_the_gpus(earlier, since))) {
		log_event("grant %s: process %d refused: it is already in grant %s", grant->name, who->pid,
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
		process = join_new(grant, who, inner_pid);
		if (!process)
			return ALIQUOT_REFUSED_FULL;
	}
	*error = give_pages(process, &reply->pages);
	if (*error) {
		log_event("grant %s: no pages for process %d: %s", grant->name, who->pid,
		          strerror(-*error));
		return ALIQUOT_REFUSED_FULL;
	}
	/* A child of the old program may still use memory of the GPU: that counts here from now on. */
	if (is_other)
		measure_begin(&process->regular, process, false, 0, NULL);
	reply->slot = process->slot;
	return 0;
}

/* Maps the pages that an earlier arbiter gave it. 0, or -errno. */
static int adopt_pages(struct process *process)
{
	struct grant *grant = process->grant;
	uint32_t number = processes_page(process)->pages;
	if (number == 0) /* it never had an answer to its HELLO, and asks again */
		return 0;
	const char *why = number == GRANT_FILES_LOST_PAGES
	                      ? "an arbiter of an older version made it"
	                      : process_pages_open(&process->pages, grant->pages, number,
	                                           grant->slice_count);
	if (!why)
		return credit_add_process(process);
	snprintf(process->ungated, sizeof(process->ungated), "its pages are lost: %s", why);
	log_event("grant %s: process %d is not gated: %s", grant->name, process->pid, process->ungated);
	return 0;
}

/* 0, or -errno: the kernel could not tell whether the process is alive. */
static int recover_slot(struct grant *grant, uint32_t slot)
{
	struct aliquot_process *page = &grant->limits->processes[slot];
	uint32_t state = atomic_load(&page->state);
	if (state != ALIQUOT_LIVE && state != ALIQUOT_ENDING)
		return 0;
	int pidfd = state == ALIQUOT_LIVE ? identity_reopen(page->pid, page->start_time) : -ESRCH;
	if (pidfd < 0 && pidfd != -ESRCH)
		return pidfd;
	struct process *process = processes_add(grant, slot, page->pid, page->start_time, on_death);
	if (!process) {
		if (pidfd >= 0)
			close(pidfd);
		return -ENOMEM;
	}
	if (pidfd < 0) {
		cleanup_start(process);
		return 0;
	}
	/* How much it used when its context was new is unknown now. */
	process->measured = UINT32_MAX;
	process->image = identity_image(process->pid);
	unjoined_on_join(process);
	int error = loop_watch(&grant->arbiter->loop, &process->death, pidfd, EPOLLIN);
	if (error) {
		close(pidfd);
		return error;
	}
	return adopt_pages(process);
}

static bool is_used(uint32_t number, void *context)
{
	struct grant *grant = context;
	if (number > grant->last_pages)
		grant->last_pages = number;
	for (uint32_t slot = 0; slot < grant->process_end; slot++)
		if (grant->processes[slot] && grant->processes[slot]->pages.credit &&
		    grant->processes[slot]->pages.number == number)
			return true;
	return false;
}

int joining_recover(struct grant *grant)
{
	for (uint32_t slot = 0; slot < ALIQUOT_MAX_PROCESSES; slot++) {
		int error = recover_slot(grant, slot);
		if (error)
			return error;
	}
	for (uint32_t slice = 0; slice < grant->slice_count; slice++)
		processes_sum_driver_bytes(grant, slice);
	process_pages_remove_others(grant->pages, is_used, grant);
	grant_publish_all(grant);
	measure_start(grant->arbiter);
	return 0;
}
