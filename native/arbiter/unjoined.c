#include "unjoined.h"

#include "aliquot/ledger.h"
#include "credit.h"
#include "log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Between the two snapshots that must list a process before it is reported. */
#define CONFIRM_NS (500 * MILLISECOND_NS)
/* A GPU's list is compared with the cgroups no more often than that: it reads /proc. */
#define PERIOD_NS (100 * MILLISECOND_NS)

bool unjoined_is_watching(const struct arbiter *arbiter)
{
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (*grant->cgroup)
			return true;
	return false;
}

bool unjoined_set_cgroup(struct grant *grant, const char *path, struct failure *failure)
{
	if (cgroup_has(path, getpid()))
		return failure_set(failure, "malformed", "the arbiter itself is in the cgroup %s", path);
	if (grant->cgroup_is_told && !strcmp(grant->cgroup, path))
		return true;
	snprintf(grant->cgroup, sizeof(grant->cgroup), "%s", path);
	grant->cgroup_is_told = true;
	grant->cgroup_was_visible = cgroup_exists(path);
	log_event("grant %s: its cgroup is %s", grant->name, path);
	return true;
}

void unjoined_forget_removed(struct grant *grant)
{
	if (!grant->cgroup_is_told || !grant->cgroup_was_visible || cgroup_exists(grant->cgroup))
		return;
	log_event("grant %s: its cgroup %s is gone", grant->name, grant->cgroup);
	unjoined_forget(grant);
}

static bool has_process_in(const struct grant *grant, const char *cgroup)
{
	for (uint32_t slot = 0; slot < grant->process_end; slot++)
		if (grant->processes[slot] && !grant->processes[slot]->ending &&
		    cgroup_has(cgroup, grant->processes[slot]->pid))
			return true;
	return false;
}

void unjoined_on_join(struct process *process)
{
	struct grant *own = process->grant;
	struct arbiter *arbiter = own->arbiter;
	char path[CGROUP_PATH_SIZE];
	bool learns = grant_life(own) == ALIQUOT_KEPT && !*own->cgroup && !own->cgroup_is_shared &&
	              identity_is_in_other_namespace(process->pid) &&
	              cgroup_apart(process->pid, getpid(), path);
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		if (grant == own)
			continue;
		if (*grant->cgroup && !grant->cgroup_is_told && cgroup_has(grant->cgroup, process->pid)) {
			log_event("grant %s: processes of other grants are in its cgroup too", grant->name);
			unjoined_forget(grant);
			grant->cgroup_is_shared = true;
		}
		if (learns && has_process_in(grant, path))
			learns = false;
	}
	if (!learns)
		return;
	memcpy(own->cgroup, path, sizeof(path));
	log_event("grant %s: its cgroup seems to be %s", own->name, path);
}

static bool has_joined(const struct arbiter *arbiter, int32_t pid)
{
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		for (uint32_t slot = 0; slot < grant->process_end; slot++)
			if (grant->processes[slot] && grant->processes[slot]->pid == pid)
				return true;
	return false;
}

/* The grant whose cgroup has the process: the innermost, if they are nested. NULL: none. */
static struct grant *grant_of(const struct arbiter *arbiter, int32_t pid)
{
	struct grant *found = NULL;
	struct cgroup_file file;
	if (!cgroup_read(pid, &file))
		return NULL;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (*grant->cgroup && (!found || strlen(grant->cgroup) > strlen(found->cgroup)) &&
		    cgroup_contains(grant->cgroup, &file))
			found = grant;
	return found && found->limits ? found : NULL;
}

static int slice_of(const struct grant *grant, const struct gpu *gpu)
{
	for (uint32_t i = 0; i < grant->slice_count; i++)
		if (grant->gpus[i] == gpu)
			return (int)i;
	return -1;
}

static void charge(struct unjoined *one, uint32_t slice, bool listed, uint64_t bytes)
{
	struct grant *grant = one->grant;
	uint32_t bit = 1u << slice;
	one->slices = listed ? one->slices | bit : one->slices & ~bit;
	if (one->bytes[slice] == bytes)
		return;
	grant->unjoined_bytes[slice] += bytes - one->bytes[slice];
	one->bytes[slice] = bytes;
	processes_sum_driver_bytes(grant, slice);
	credit_note_unseen(grant, slice);
}

static void drop(struct unjoined **link)
{
	struct unjoined *one = *link;
	for (uint32_t i = 0; i < one->grant->slice_count; i++)
		charge(one, i, false, 0);
	*link = one->next;
	free(one);
}

void unjoined_forget(struct grant *grant)
{
	for (struct unjoined **link = &grant->arbiter->unjoined; *link;)
		if ((*link)->grant == grant)
			drop(link);
		else
			link = &(*link)->next;
	*grant->cgroup = 0;
	grant->cgroup_is_told = false;
}

/* 0, or -errno. */
static int kill_process(const struct unjoined *one)
{
	int fd = identity_reopen(one->pid, one->start_time);
	if (fd < 0)
		return fd;
	/* The pidfd is of the process that was seen twice; its cgroup once more, since it may move. */
	int error = cgroup_has(one->grant->cgroup, one->pid) ? 0 : -ESRCH;
	if (!error)
		error = identity_kill(fd);
	close(fd);
	return error;
}

static void report(struct unjoined *one)
{
	struct grant *grant = one->grant;
	uint64_t sum = 0;
	for (uint32_t i = 0; i < grant->slice_count; i++)
		sum += one->bytes[i];
	if (!one->reported)
		log_event("grant %s: process %d uses %llu MiB of GPU memory in its cgroup and has not "
		          "joined it",
		          grant->name, one->pid, mib_for(sum));
	one->reported = true;
	if (!grant->arbiter->ends_unjoined || !grant->cgroup_is_told || !one->computes || one->ended)
		return;
	int error = kill_process(one);
	one->ended = true;
	if (error && error != -ESRCH)
		log_event("grant %s: process %d cannot be ended: %s", grant->name, one->pid,
		          strerror(-error));
	else if (!error)
		log_event("grant %s: process %d has not joined: ended", grant->name, one->pid);
}

static struct unjoined *add(struct arbiter *arbiter, struct grant *grant, int32_t pid,
                            uint64_t since)
{
	struct unjoined *one = calloc(1, sizeof(*one));
	if (!one || identity_start_time(pid, &one->start_time)) {
		free(one);
		return NULL;
	}
	one->grant = grant;
	one->pid = pid;
	one->since = since;
	identity_name(pid, one->name);
	one->next = arbiter->unjoined;
	arbiter->unjoined = one;
	return one;
}

/* Whether what is known of the process still holds. */
static bool is_current(const struct unjoined *one)
{
	const struct arbiter *arbiter = one->grant->arbiter;
	return !has_joined(arbiter, one->pid) && !identity_is_reused(one->pid, one->start_time) &&
	       grant_of(arbiter, one->pid) == one->grant;
}

static void drop_outdated(struct arbiter *arbiter)
{
	for (struct unjoined **link = &arbiter->unjoined; *link;)
		if (is_current(*link))
			link = &(*link)->next;
		else
			drop(link);
}

static struct unjoined *find(const struct arbiter *arbiter, int32_t pid)
{
	struct unjoined *one = arbiter->unjoined;
	while (one && one->pid != pid)
		one = one->next;
	return one;
}

static void observe(struct arbiter *arbiter, const struct gpu *gpu,
                    const struct gpu_snapshot *snapshot, const struct gpu_client *client)
{
	struct unjoined *one = find(arbiter, client->pid);
	struct grant *grant = one ? one->grant : grant_of(arbiter, client->pid);
	int slice = grant ? slice_of(grant, gpu) : -1;
	if (slice < 0)
		return;
	if (!one)
		one = add(arbiter, grant, client->pid, snapshot->asked_at);
	if (!one)
		return;
	uint64_t estimate = gpu->context_bytes;
	if (!estimate)
		estimate = ledger_context_estimate(atomic_load(&grant->limits->slices[slice].limit_bytes));
	one->computes |= client->computes;
	charge(one, (uint32_t)slice, true,
	       client->bytes == NVML_UNKNOWN_BYTES ? estimate : client->bytes);
	if (snapshot->asked_at >= one->since + CONFIRM_NS)
		report(one);
}

/* Takes the charges of processes that the GPU no longer lists, and forgets those on no GPU. */
static void drop_unlisted(struct arbiter *arbiter, const struct gpu *gpu,
                          const struct gpu_snapshot *snapshot)
{
	for (struct unjoined **link = &arbiter->unjoined; *link;) {
		struct unjoined *one = *link;
		int slice = slice_of(one->grant, gpu);
		if (slice >= 0 && !gpu_client_find(snapshot, one->pid))
			charge(one, (uint32_t)slice, false, 0);
		if (one->slices)
			link = &one->next;
		else
			drop(link);
	}
}

void unjoined_on_timer(struct timer *timer)
{
	struct arbiter *arbiter = CONTAINER(timer, struct arbiter, confirm);
	observer_want(&arbiter->observer, observer_all(&arbiter->observer));
}

/* Asks for the snapshot that confirms what was seen once. */
static void confirm_in_time(struct arbiter *arbiter)
{
	uint64_t now = loop_now(), due = UINT64_MAX;
	for (const struct unjoined *one = arbiter->unjoined; one; one = one->next)
		if (!one->reported && one->since + CONFIRM_NS < due)
			due = one->since + CONFIRM_NS;
	if (due != UINT64_MAX)
		loop_timer_set(&arbiter->loop, &arbiter->confirm, due > now ? due : now + PERIOD_NS);
}

static void compare(struct arbiter *arbiter, struct gpu *gpu, const struct gpu_snapshot *snapshot)
{
	gpu->compared_at = snapshot->asked_at;
	drop_outdated(arbiter);
	drop_unlisted(arbiter, gpu, snapshot);
	for (size_t i = 0; i < snapshot->count; i++)
		if (!has_joined(arbiter, snapshot->clients[i].pid))
			observe(arbiter, gpu, snapshot, &snapshot->clients[i]);
}

void unjoined_on_snapshot(struct arbiter *arbiter, unsigned number)
{
	const struct gpu_snapshot *snapshot = observer_latest(&arbiter->observer, number);
	struct gpu *gpu = &arbiter->nvml.gpus[number];
	if (!arbiter->unjoined && !unjoined_is_watching(arbiter))
		return;
	if (snapshot->told && snapshot->asked_at >= gpu->compared_at + PERIOD_NS)
		compare(arbiter, gpu, snapshot);
	confirm_in_time(arbiter);
}

void unjoined_write(const struct grant *grant, struct json *out)
{
	json_string(out, "cgroup", *grant->cgroup ? grant->cgroup : NULL);
	json_bool(out, "cgroup_is_told", grant->cgroup_is_told);
	json_open(out, "unjoined", '[');
	for (const struct unjoined *one = grant->arbiter->unjoined; one; one = one->next) {
		if (one->grant != grant)
			continue;
		uint64_t sum = 0;
		for (uint32_t i = 0; i < grant->slice_count; i++)
			sum += one->bytes[i];
		json_open(out, NULL, '{');
		json_number(out, "pid", (uint32_t)one->pid);
		json_string(out, "name", one->name);
		json_number(out, "bytes", sum);
		json_bool(out, "ended", one->ended);
		json_close(out, '}');
	}
	json_close(out, ']');
}
