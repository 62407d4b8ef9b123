#include "grants.h"

#include "aliquot/ledger.h"
#include "capacity.h"
#include "connections.h"
#include "enum_names.h"
#include "grant_files.h"
#include "grant_state.h"
#include "joining.h"
#include "log.h"
#include "processes.h"
#include "unjoined.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

static void end_if_unused(struct grant *grant);

unsigned grants_count_readable(struct arbiter *arbiter)
{
	unsigned count = 0;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		count += grant->limits != NULL;
	return count;
}

void grants_linger(struct arbiter *arbiter)
{
	if (grants_count_readable(arbiter))
		loop_timer_stop(&arbiter->linger);
	else if (arbiter->linger_ns && !arbiter->linger.due)
		loop_timer_set(&arbiter->loop, &arbiter->linger, loop_now() + arbiter->linger_ns);
}

static void on_owner_dead(struct watch *watch, uint32_t events)
{
	(void)events;
	struct grant *grant = CONTAINER(watch, struct grant, owner);
	loop_unwatch(&grant->arbiter->loop, watch);
	log_event("grant %s: its owner (pid %d) has died", grant->name, grant->limits->owner_pid);
	end_if_unused(grant);
}

static void on_connection(struct watch *watch, uint32_t events)
{
	(void)events;
	struct grant *grant = CONTAINER(watch, struct grant, listener);
	connections_accept(grant->arbiter, watch->fd, grant, grant->arbiter->tenant_ready);
}

static struct grant *new_grant(struct arbiter *arbiter, const char *name)
{
	struct grant *grant = calloc(1, sizeof(*grant));
	if (!grant)
		return NULL;
	grant->arbiter = arbiter;
	grant->limits_fd = grant->usage_fd = grant->records = grant->pages = -1;
	grant->processes_left = end_if_unused;
	grant->listener = (struct watch){.fd = -1, .ready = on_connection};
	grant->owner = (struct watch){.fd = -1, .ready = on_owner_dead};
	snprintf(grant->name, sizeof(grant->name), "%s", name);
	return grant;
}

/* Closes the grant; its files stay. */
static void release(struct grant *grant)
{
	struct arbiter *arbiter = grant->arbiter;
	connections_close_of(arbiter, grant);
	unjoined_forget(grant);
	processes_discard_all(grant);
	credit_remove_grant(grant);
	loop_unwatch(&arbiter->loop, &grant->listener);
	loop_unwatch(&arbiter->loop, &grant->owner);
	grant_files_close(grant);
	struct grant **link = &arbiter->grants;
	while (*link && *link != grant)
		link = &(*link)->next;
	if (*link) {
		*link = grant->next;
		arbiter->grant_count--;
	}
	loop_free_later(&arbiter->loop, grant);
}

static void insert(struct grant *grant)
{
	grant->next = grant->arbiter->grants;
	grant->arbiter->grants = grant;
	grant->arbiter->grant_count++;
}

/* Takes both descriptors: it watches them or closes them. 0, or -errno. */
static int watch_both(struct grant *grant, int listener, int owner)
{
	struct loop *loop = &grant->arbiter->loop;
	int error = 0;
	if (listener >= 0) {
		error = loop_watch(loop, &grant->listener, listener,
		                   connections_listen_events(grant->arbiter, grant));
		if (error)
			close(listener);
	}
	if (owner >= 0) {
		int second = error ? error : loop_watch(loop, &grant->owner, owner, EPOLLIN);
		if (second)
			close(owner);
		error = second;
	}
	return error;
}

static bool may_make(struct arbiter *arbiter, const struct control_request *request,
                     struct failure *failure)
{
	const struct grant *other = grant_find(arbiter, request->name);
	if (other)
		return failure_set(failure, "name-in-use", "there is a grant named %s%s%s", request->name,
		                   *other->broken ? ", and it is broken: " : "", other->broken);
	if (arbiter->grant_count >= GRANTS_MOST)
		return failure_set(failure, "cannot-make", "there are already %u grants", GRANTS_MOST);
	for (uint32_t i = 0; i < request->slice_count; i++) {
		const struct control_slice *asked = &request->slices[i];
		struct gpu *gpu = nvml_find(&arbiter->nvml, asked->uuid);
		char uuid[ALIQUOT_UUID_TEXT_SIZE];
		aliquot_uuid_write(asked->uuid, uuid);
		if (!gpu)
			return failure_set(failure, "no-such-gpu", "this machine has no GPU %s", uuid);
		if (!capacity_check_memory(arbiter, gpu, asked->memory_bytes, NULL, failure) ||
		    !capacity_check_compute(arbiter, gpu, asked, NULL, failure))
			return false;
	}
	return true;
}

struct grant *grants_make(struct arbiter *arbiter, const struct control_request *request,
                          const struct identity *owner, struct failure *failure)
{
	int listener = -1;
	grants_drop_removed(arbiter);
	bool allowed = may_make(arbiter, request, failure);
	struct grant *grant = allowed ? new_grant(arbiter, request->name) : NULL;
	if (allowed && !grant)
		failure_set(failure, "cannot-make", "out of memory");
	if (!grant) {
		identity_close(owner);
		return NULL;
	}
	grant->slice_count = request->slice_count;
	for (uint32_t i = 0; i < request->slice_count; i++)
		grant->gpus[i] = nvml_find(&arbiter->nvml, request->slices[i].uuid);
	if (!grant_files_make(grant, request, owner, &listener, failure)) {
		identity_close(owner);
		free(grant);
		return NULL;
	}
	insert(grant);
	int error = watch_both(grant, listener, owner->pidfd);
	if (!error)
		error = credit_add_grant(grant);
	if (error) {
		failure_set(failure, "cannot-make", "grant %s cannot be watched: %s", grant->name,
		            strerror(-error));
		grant_files_remove(arbiter->state, grant->name);
		release(grant);
		return NULL;
	}
	grants_linger(arbiter);
	if (request->kept)
		log_event("grant %s made: %u slices, kept", grant->name, grant->slice_count);
	else
		log_event("grant %s made: %u slices for pid %d, uid %u", grant->name, grant->slice_count,
		          owner->pid, owner->uid);
	return grant;
}

static void end_grant(struct grant *grant)
{
	struct arbiter *arbiter = grant->arbiter;
	log_event("grant %s ended", grant->name);
	grant_files_remove(arbiter->state, grant->name);
	release(grant);
	grants_linger(arbiter);
}

static void end_if_unused(struct grant *grant)
{
	bool wanted = grant->owner.fd >= 0 || grant_life(grant) == ALIQUOT_KEPT;
	if (grant->limits && !wanted && !grant->process_count)
		end_grant(grant);
}

bool grants_end(struct arbiter *arbiter, const char *name, uint32_t *left, struct failure *failure)
{
	grants_drop_removed(arbiter);
	struct grant *grant = grant_find(arbiter, name);
	*left = 0;
	if (!grant)
		return true;
	if (!grant->limits) { /* nothing says which processes are in it */
		end_grant(grant);
		return true;
	}
	if (grant_life(grant) == ALIQUOT_OWNED)
		return failure_set(failure, "not-kept", "grant %s ends with its command (pid %d)", name,
		                   grant->limits->owner_pid);
	if (atomic_exchange(&grant->limits->life, ALIQUOT_ENDED) == ALIQUOT_KEPT)
		log_event("grant %s: ended on request, %u processes are still in it", name,
		          grant->process_count);
	grant_publish(grant, GRANT_NO_SLOT);
	*left = grant->process_count;
	end_if_unused(grant);
	return true;
}

void grants_drop_removed(struct arbiter *arbiter)
{
	for (struct grant *grant = arbiter->grants, *next; grant; grant = next) {
		struct stat status;
		next = grant->next;
		if (grant->limits || !fstatat(arbiter->state->grants, grant->name, &status, 0))
			continue;
		log_event("grant %s: somebody removed its directory", grant->name);
		grant_files_remove(arbiter->state, grant->name);
		release(grant);
	}
}

/* Finds the GPUs of a recovered grant, and reads the context sizes that its limits store. */
static void find_gpus(struct grant *grant)
{
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct aliquot_slice_limits *slice = &grant->limits->slices[i];
		struct gpu *gpu = nvml_find(&grant->arbiter->nvml, slice->uuid);
		grant->gpus[i] = gpu;
		if (!gpu) {
			grant_break(grant, "limits", "a slice is of a GPU that this machine no longer has");
			continue;
		}
		uint64_t context = atomic_load(&slice->context_bytes);
		/* An earlier arbiter may have had only an estimate. */
		if (context && context != ledger_context_estimate(atomic_load(&slice->limit_bytes)) &&
		    (!gpu->context_bytes || context < gpu->context_bytes))
			gpu->context_bytes = context;
	}
}

static bool recover_grant(struct arbiter *arbiter, const char *name, struct failure *failure)
{
	/* A container runtime creates an empty directory where the one to mount is missing. */
	if (!unlinkat(arbiter->state->grants, name, AT_REMOVEDIR))
		return true;
	struct grant *grant = new_grant(arbiter, name);
	if (!grant)
		return failure_set(failure, "memory", "out of memory");
	int listener = -1, owner = -1;
	int error = grant_files_open(grant, &listener);
	if (error == -ENOTDIR || error == -ENOENT || error == -ELOOP) {
		log_event("%s/grants/%s is not a grant: ignored", arbiter->state->path, name);
		free(grant);
		return true;
	}
	insert(grant);
	if (!error && grant->limits) {
		find_gpus(grant);
		grant_state_repair(grant);
		owner = identity_reopen(grant->limits->owner_pid, grant->limits->owner_start_time);
		if (owner < 0 && owner != -ESRCH)
			error = owner;
	}
	int watching = watch_both(grant, listener, owner);
	if (!error)
		error = watching;
	if (!error && grant->limits)
		error = credit_add_grant(grant);
	if (!error && grant->limits)
		error = joining_recover(grant);
	if (error)
		return failure_set(failure, "state", "grant %s cannot be recovered: %s", name,
		                   strerror(-error));
	static const char *const lives[] = {"owner dead", "kept", "ended on request"};
	log_event("grant %s recovered: %u processes, %s, %s", name, grant->process_count,
	          owner >= 0 ? "owner alive" : lives[grant_life(grant)],
	          enum_name(&enum_names_grant_state, grant_state(grant)));
	end_if_unused(grant);
	return true;
}

/* Removes what an arbiter left in the private directory that was killed while it made or ended a
 * grant. */
static void remove_leftover(int directory, const char *name, void *context)
{
	(void)directory;
	struct arbiter *arbiter = context;
	if (!grant_find(arbiter, name))
		grant_files_remove_private(arbiter->state, name);
}

bool grants_recover(struct arbiter *arbiter, struct failure *failure)
{
	int fd = openat(arbiter->state->grants, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);
	if (!directory) {
		failure_set(failure, "state", "%s/grants: %s", arbiter->state->path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return false;
	}
	bool sound = true;
	struct dirent *entry;
	while (sound && (entry = readdir(directory))) {
		if (control_is_name(entry->d_name, strlen(entry->d_name)))
			sound = recover_grant(arbiter, entry->d_name, failure);
	}
	closedir(directory);
	if (!sound)
		return false;
	private_directory_walk(&arbiter->state->records, remove_leftover, arbiter);
	private_directory_walk(&arbiter->state->pages, remove_leftover, arbiter);
	return state_set_version(arbiter->state, failure);
}

void grants_close_all(struct arbiter *arbiter)
{
	while (arbiter->grants)
		release(arbiter->grants);
}
