#include "grants.h"

#include "connections.h"
#include "grant_files.h"
#include "hold.h"
#include "log.h"
#include "processes.h"
#include "room.h"
#include "tenants.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

struct grant *grants_find(struct arbiter *arbiter, const char *name)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (!strcmp(grant->name, name))
			return grant;
	return NULL;
}

struct grant *grants_find_to_change(struct arbiter *arbiter, const char *name, uint32_t uid,
                                    struct failure *failure)
{
	struct grant *grant = grants_find(arbiter, name);
	if (!grant) {
		failure_set(failure, "no-such-grant", "there is no grant named %s", name);
		return NULL;
	}
	if (!grants_check(grant)) {
		failure_set(failure, "broken", "grant %s is broken: %s", name, grant->broken);
		return NULL;
	}
	if (uid != grant->limits->owner_uid && uid != 0 && uid != geteuid()) {
		failure_set(failure, "not-yours", "grant %s is another user's", name);
		return NULL;
	}
	return grant;
}

void grants_break(struct grant *grant, const char *part, const char *why)
{
	grant->usage = NULL;
	if (*grant->broken)
		return;
	size_t named = strlen(part);
	bool repeats = !strncmp(why, part, named) && why[named] == ':';
	snprintf(grant->broken, sizeof(grant->broken), "%s%s%s", repeats ? "" : part,
	         repeats ? "" : ": ", why);
	log_event("grant %s is broken: %s", grant->name, grant->broken);
}

bool grants_check(struct grant *grant)
{
	if (*grant->broken)
		return false;
	if (grant->limits_pages.lost)
		grants_break(grant, "limits", "cut short while in use");
	else if (grant->usage_pages.lost)
		grants_break(grant, "usage", "cut short while in use");
	else {
		const char *why = aliquot_usage_check(grant->usage, grant->usage_pages.size);
		if (grant->usage_pages.lost)
			why = "cut short while in use";
		if (why)
			grants_break(grant, "usage", why);
	}
	return !*grant->broken;
}

uint64_t grants_granted_bytes(struct arbiter *arbiter, const struct gpu *gpu)
{
	uint64_t sum = 0;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		if (grants_hold(grant) == ALIQUOT_HOLD_PARKED)
			continue;
		for (uint32_t i = 0; grant->limits && i < grant->slice_count; i++)
			if (grant->gpus[i] == gpu)
				sum += atomic_load(&grant->limits->slices[i].limit_bytes);
	}
	return sum;
}

unsigned grants_held(struct arbiter *arbiter)
{
	unsigned held = 0;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		held += grant->limits != NULL;
	return held;
}

void grants_linger(struct arbiter *arbiter)
{
	if (grants_held(arbiter))
		loop_timer_stop(&arbiter->linger);
	else if (arbiter->linger_ns && !arbiter->linger.due)
		loop_timer_set(&arbiter->loop, &arbiter->linger, loop_now() + arbiter->linger_ns);
}

enum aliquot_life grants_life(const struct grant *grant)
{
	return grant->limits ? (enum aliquot_life)atomic_load(&grant->limits->life) : ALIQUOT_OWNED;
}

enum aliquot_hold grants_hold(const struct grant *grant)
{
	return grant->limits ? aliquot_limits_hold(grant->limits) : ALIQUOT_HOLD_TAKEN;
}

const char *grants_hold_word(enum aliquot_hold hold)
{
	static const char *const words[] = {"taken", "open", "parked"};
	return words[hold];
}

static void on_owner_dead(struct watch *watch, uint32_t events)
{
	(void)events;
	struct grant *grant = CONTAINER(watch, struct grant, owner);
	loop_unwatch(&grant->arbiter->loop, watch);
	log_event("grant %s: its owner (pid %d) is dead", grant->name, grant->limits->owner_pid);
	grants_consider(grant);
}

static void on_connection(struct watch *watch, uint32_t events)
{
	(void)events;
	struct grant *grant = CONTAINER(watch, struct grant, listener);
	connections_accept(grant->arbiter, watch->fd, grant, tenants_on_ready);
}

static struct grant *create(struct arbiter *arbiter, const char *name)
{
	struct grant *grant = calloc(1, sizeof(*grant));
	if (!grant)
		return NULL;
	grant->arbiter = arbiter;
	grant->limits_fd = grant->usage_fd = -1;
	grant->listener = (struct watch){.fd = -1, .ready = on_connection};
	grant->owner = (struct watch){.fd = -1, .ready = on_owner_dead};
	snprintf(grant->name, sizeof(grant->name), "%s", name);
	return grant;
}

/* Lets go of the grant; its files stay. */
static void release(struct grant *grant)
{
	struct arbiter *arbiter = grant->arbiter;
	connections_close_of(arbiter, grant);
	processes_release_all(grant);
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

static void add(struct grant *grant)
{
	grant->next = grant->arbiter->grants;
	grant->arbiter->grants = grant;
	grant->arbiter->grant_count++;
}

/* 0, or -errno; the descriptors are the watches' or closed. */
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
	const struct grant *other = grants_find(arbiter, request->name);
	if (other)
		return failure_set(failure, "name-in-use", "there is a grant named %s%s%s", request->name,
		                   *other->broken ? ", and it is broken: " : "", other->broken);
	if (arbiter->grant_count >= GRANTS_MOST)
		return failure_set(failure, "cannot-make", "there are %u grants already", GRANTS_MOST);
	for (uint32_t i = 0; i < request->slice_count; i++) {
		const struct control_slice *asked = &request->slices[i];
		struct gpu *gpu = nvml_find(&arbiter->nvml, asked->uuid);
		char uuid[ALIQUOT_UUID_TEXT_SIZE];
		aliquot_uuid_write(asked->uuid, uuid);
		if (!gpu)
			return failure_set(failure, "no-such-gpu", "this machine has no %s", uuid);
		if (!room_for_memory(arbiter, gpu, asked->memory_bytes, NULL, failure) ||
		    !room_for_compute(arbiter, gpu, asked, NULL, failure) ||
		    !room_for_policy(arbiter, gpu, asked->policy, failure))
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
	struct grant *grant = allowed ? create(arbiter, request->name) : NULL;
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
	add(grant);
	int error = watch_both(grant, listener, owner->pidfd);
	if (!error)
		error = credit_add_grant(grant);
	if (error) {
		failure_set(failure, "cannot-make", "grant %s cannot be watched: %s", grant->name,
		            strerror(-error));
		state_remove_directory(arbiter->state, grant->name);
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

static void end(struct grant *grant)
{
	struct arbiter *arbiter = grant->arbiter;
	log_event("grant %s ended", grant->name);
	state_remove_directory(arbiter->state, grant->name);
	release(grant);
	grants_linger(arbiter);
}

void grants_consider(struct grant *grant)
{
	bool wanted = grant->owner.fd >= 0 || grants_life(grant) == ALIQUOT_KEPT;
	if (grant->limits && !wanted && !grant->process_count)
		end(grant);
}

bool grants_end(struct arbiter *arbiter, const char *name, uint32_t *left, struct failure *failure)
{
	grants_drop_removed(arbiter);
	struct grant *grant = grants_find(arbiter, name);
	*left = 0;
	if (!grant)
		return true;
	if (!grant->limits) { /* it says of nobody that they are in it */
		end(grant);
		return true;
	}
	if (grants_life(grant) == ALIQUOT_OWNED)
		return failure_set(failure, "not-kept", "grant %s ends with its command (pid %d)", name,
		                   grant->limits->owner_pid);
	if (atomic_exchange(&grant->limits->life, ALIQUOT_ENDED) == ALIQUOT_KEPT)
		log_event("grant %s is kept no more: %u processes are left", name, grant->process_count);
	*left = grant->process_count;
	grants_consider(grant);
	return true;
}

void grants_drop_removed(struct arbiter *arbiter)
{
	for (struct grant *grant = arbiter->grants, *next; grant; grant = next) {
		struct stat status;
		next = grant->next;
		if (grant->limits || !fstatat(arbiter->state->grants, grant->name, &status, 0))
			continue;
		log_event("grant %s was removed", grant->name);
		release(grant);
	}
}

/* The GPUs of a recovered grant, and what it knows of their contexts. */
static void find_gpus(struct grant *grant)
{
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct aliquot_slice_limits *slice = &grant->limits->slices[i];
		struct gpu *gpu = nvml_find(&grant->arbiter->nvml, slice->uuid);
		grant->gpus[i] = gpu;
		if (!gpu) {
			grants_break(grant, "limits", "a GPU that this machine does not have now");
			continue;
		}
		uint64_t context = atomic_load(&slice->context_bytes);
		if (context && (!gpu->context_bytes || context < gpu->context_bytes))
			gpu->context_bytes = context;
	}
}

static bool recover(struct arbiter *arbiter, const char *name, struct failure *failure)
{
	/* What starts containers makes an empty folder where there is none to mount. */
	if (!unlinkat(arbiter->state->grants, name, AT_REMOVEDIR))
		return true;
	struct grant *grant = create(arbiter, name);
	if (!grant)
		return failure_set(failure, "memory", "out of memory");
	int listener = -1, owner = -1;
	int error = grant_files_open(grant, &listener);
	if (error == -ENOTDIR || error == -ENOENT || error == -ELOOP) {
		log_event("%s/grants/%s is no grant: left alone", arbiter->state->path, name);
		free(grant);
		return true;
	}
	add(grant);
	if (!error && grant->limits) {
		find_gpus(grant);
		hold_agree(grant);
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
		error = processes_recover(grant);
	if (error)
		return failure_set(failure, "state", "grant %s cannot be recovered: %s", name,
		                   strerror(-error));
	static const char *const lives[] = {"its owner dead", "kept", "kept no more"};
	log_event("grant %s recovered: %u processes, %s, %s", name, grant->process_count,
	          owner >= 0 ? "its owner alive" : lives[grants_life(grant)],
	          grants_hold_word(grants_hold(grant)));
	grants_consider(grant);
	return true;
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
			sound = recover(arbiter, entry->d_name, failure);
	}
	closedir(directory);
	return sound;
}

void grants_close_all(struct arbiter *arbiter)
{
	while (arbiter->grants)
		release(arbiter->grants);
}
