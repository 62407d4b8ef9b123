#include "grants.h"

#include "aliquot/ledger.h"
#include "capacity.h"
#include "connections.h"
#include "directory.h"
#include "enum_names.h"
#include "grant_files.h"
#include "grant_state.h"
#include "joining.h"
#include "log.h"
#include "movers.h"
#include "processes.h"
#include "residence.h"
#include "mps.h"
#include "overcommit.h"
#include "spill.h"
#include "unjoined.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
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

/* No process can join a container's grant any more when the container has ended. */
static void set_ended(struct grant *grant)
{
	if (grant_life(grant) != ALIQUOT_KEPT)
		return;
	atomic_store(&grant->limits->life, ALIQUOT_ENDED);
	grant_publish(grant, GRANT_NO_SLOT);
}

static void on_owner_dead(struct watch *watch, uint32_t events)
{
	(void)events;
	struct grant *grant = CONTAINER(watch, struct grant, owner);
	loop_unwatch(&grant->arbiter->loop, watch);
	log_event("grant %s: its owner (pid %d) has died", grant->name, grant->limits->owner_pid);
	set_ended(grant);
	end_if_unused(grant);
}

static void on_connection(struct watch *watch, uint32_t events)
{
	(void)events;
	struct grant *grant = CONTAINER(watch, struct grant, listener);
	uint64_t begun = callers_time_ns();
	connections_accept(grant->arbiter, watch->fd, grant, grant->arbiter->tenant_ready);
	connections_charge(grant, callers_time_ns() - begun);
}

static struct grant *new_grant(struct arbiter *arbiter, enum state_folder folder)
{
	struct grant *grant = calloc(1, sizeof(*grant));
	if (!grant)
		return NULL;
	grant->arbiter = arbiter;
	grant->limits_fd = grant->usage_fd = grant->records = grant->pages = -1;
	grant->processes_left = end_if_unused;
	grant->listener = (struct watch){.fd = -1, .ready = on_connection};
	grant->owner = (struct watch){.fd = -1, .ready = on_owner_dead};
	grant->pause.fire = connections_on_pause_over;
	grant->folder = folder;
	return grant;
}

/* Closes the grant; its files stay. */
static void release(struct grant *grant)
{
	struct arbiter *arbiter = grant->arbiter;
	connections_close_of(arbiter, grant);
	loop_timer_stop(&grant->pause);
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

static bool take_turns(const struct arbiter *arbiter, const struct control_request *request)
{
	return request->swap && arbiter->overcommit_percent > 100;
}

/* Whether there is memory for a slice. *waits: there will be, when others have had their turn (rotation.h). */
static bool has_memory(struct arbiter *arbiter, const struct gpu *gpu,
                       const struct control_request *request, uint64_t bytes, bool *waits,
                       struct failure *failure)
{
	struct failure ignored = {.reader = failure->reader};
	uint64_t mover = request->swap ? movers_new_bytes(arbiter, gpu) : 0;
	if (!take_turns(arbiter, request))
		return capacity_check_memory(arbiter, gpu, bytes + mover, NULL, failure);
	*waits = !capacity_check_present(arbiter, gpu, bytes + mover, NULL, &ignored);
	struct overcommit_slice asked = {gpu, bytes + mover, request->overcommit_percent};
	return overcommit_check(arbiter, &asked, NULL, failure);
}

/* Whether the GPU is of the kind that the request needs. */
static bool suits(const struct gpu *gpu, const struct control_request *request,
                  struct failure *failure)
{
	if (gpu->divided)
		return failure_set(failure, "divided",
		                   "GPU %u (%s) is in MIG mode: only its instances have slices", gpu->index,
		                   gpu->uuid_text);
	if (gpu->instance && (request->swap || request->mps))
		return failure_set(failure, "instance",
		                   "GPU %u (%s) is an instance of a GPU: a slice of it has neither %s",
		                   gpu->index, gpu->uuid_text, "swap nor an MPS server");
	return true;
}

bool grants_use_gpu(const struct arbiter *arbiter, const struct gpu *gpu)
{
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		for (uint32_t i = 0; i < grant->slice_count; i++)
			if (grant->gpus[i] == gpu)
				return true;
	return false;
}

static bool may_make(struct arbiter *arbiter, const struct control_request *request, uint32_t uid,
                     bool *waits, struct failure *failure)
{
	const struct grant *other = grant_find(arbiter, uid, request->name);
	if (other)
		return failure_set(failure, "name-in-use", "there is a grant named %s%s%s", request->name,
		                   *other->broken ? ", and it is broken: " : "", other->broken);
	unsigned most = callers_is_privileged(uid) ? GRANTS_MOST : GRANTS_MOST - GRANTS_RESERVED;
	if (arbiter->grant_count >= most)
		return failure_set(failure, "cannot-make", "there are already %u grants",
		                   arbiter->grant_count);
	struct user_use use = {.grants = 1};
	struct newcomer newcomer = {.name = request->name,
	                            .owner_uid = uid,
	                            .neighbours = &request->neighbours};
	for (uint32_t i = 0; i < request->slice_count; i++) {
		const struct control_slice *asked = &request->slices[i];
		struct gpu *gpu = nvml_find_present(&arbiter->nvml, asked->uuid, asked->instance);
		char uuid[ALIQUOT_UUID_TEXT_SIZE];
		aliquot_uuid_write(asked->uuid, asked->instance, uuid);
		if (!gpu)
			return failure_set(failure, "no-such-gpu", "this machine has no GPU %s", uuid);
		if (!suits(gpu, request, failure) || !mps_check(arbiter, gpu, request, failure) ||
		    !has_memory(arbiter, gpu, request, asked->memory_bytes, waits, failure) ||
		    !capacity_check_compute(arbiter, gpu, asked, uid, NULL, failure) ||
		    !neighbours_check(arbiter, gpu, &newcomer, failure))
			return false;
		users_add(&use, asked, request->neighbours.alone ? gpu->memory_bytes : 0);
	}
	uint64_t set_aside = request->spill_bytes ? overcommit_host_bytes(arbiter, NULL, NULL) : 0;
	return spill_check(arbiter, request->spill_bytes, set_aside, failure) &&
	       users_check(arbiter, uid, &(struct user_use){0}, &use, failure);
}

static struct grant *find_by_directory(struct arbiter *arbiter, const char *directory)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (!strcmp(grant->directory, directory))
			return grant;
	return NULL;
}

/* Chooses the directory of a new grant (grant.h). 0, or -errno. */
static int choose_directory(struct grant *grant, const char *name)
{
	uint64_t random;
	if (grant->owner_uid == geteuid()) {
		snprintf(grant->directory, sizeof(grant->directory), "%s", name);
		return 0;
	}
	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -errno;
	snprintf(grant->directory, sizeof(grant->directory), "%u:%016llx", grant->owner_uid,
	         (unsigned long long)random);
	return 0;
}

/* A grant with its name, GPUs and directory chosen, in no list yet. NULL and `failure`: it cannot be. */
static struct grant *prepare(struct arbiter *arbiter, const struct control_request *request,
                             uint32_t uid, struct failure *failure)
{
	bool waits = false;
	grants_drop_removed(arbiter);
	if (!may_make(arbiter, request, uid, &waits, failure))
		return NULL;
	/* A user can pass through grants/ alone. */
	bool for_container = request->kept && uid == geteuid();
	struct grant *grant = new_grant(arbiter, for_container ? STATE_KEPT : STATE_GRANTS);
	int error = -ENOMEM;
	if (grant) {
		grant_set_name(grant, uid, request->name);
		error = choose_directory(grant, request->name);
		/* One of another user that an earlier version put there. */
		if (!error && find_by_directory(arbiter, grant->directory))
			error = -EEXIST;
	}
	if (error) {
		failure_set(failure, "cannot-make", "grant %s cannot be made: %s", request->name,
		            strerror(-error));
		free(grant);
		return NULL;
	}
	grant->takes_turns = take_turns(arbiter, request);
	grant->starts_off = waits;
	grant->slice_count = request->slice_count;
	for (uint32_t i = 0; i < request->slice_count; i++)
		grant->gpus[i] = nvml_find(&arbiter->nvml, request->slices[i].uuid);
	return grant;
}

struct grant *grants_make(struct arbiter *arbiter, const struct control_request *request,
                          const struct identity *owner, struct failure *failure)
{
	int listener = -1;
	struct grant *grant = prepare(arbiter, request, owner->uid, failure);
	if (!grant) {
		identity_close(owner);
		return NULL;
	}
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
		failure_set(failure, "cannot-make", "grant %s cannot be watched: %s", request->name,
		            strerror(-error));
		grant_files_remove(grant);
		release(grant);
		return NULL;
	}
	grants_linger(arbiter);
	movers_update(arbiter);
	if (request->kept && !owner->pid)
		log_event("grant %s made: %u slices, kept for uid %u", grant->name, grant->slice_count,
		          owner->uid);
	else if (request->kept)
		log_event("grant %s made: %u slices, kept while pid %d lives", grant->name,
		          grant->slice_count, owner->pid);
	else
		log_event("grant %s made: %u slices for pid %d, uid %u", grant->name, grant->slice_count,
		          owner->pid, owner->uid);
	return grant;
}

static void end_grant(struct grant *grant)
{
	struct arbiter *arbiter = grant->arbiter;
	log_event("grant %s ended", grant->name);
	grant_files_remove(grant);
	release(grant);
	grants_linger(arbiter);
	movers_update(arbiter);
}

static void end_if_unused(struct grant *grant)
{
	bool wanted = grant->owner.fd >= 0 || grant_life(grant) == ALIQUOT_KEPT;
	if (grant->limits && !wanted && !grant->process_count)
		end_grant(grant);
}

bool grants_is_owned_by(const struct grant *grant, int32_t pid)
{
	return grant->limits && grant->owner.fd >= 0 && grant->limits->owner_pid == pid;
}

bool grants_end(struct grant *grant, bool for_owner, uint32_t *left, struct failure *failure)
{
	*left = 0;
	if (!grant->limits) { /* nothing says which processes are in it */
		end_grant(grant);
		return true;
	}
	if (grant_life(grant) == ALIQUOT_OWNED && !for_owner)
		return failure_set(failure, "not-kept", "grant %s ends with its command (pid %d)",
		                   grant->name, grant->limits->owner_pid);
	loop_unwatch(&grant->arbiter->loop, &grant->owner);
	if (atomic_exchange(&grant->limits->life, ALIQUOT_ENDED) != ALIQUOT_ENDED)
		log_event("grant %s: ended on request, %u processes are still in it", grant->name,
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
		int folder = arbiter->state->folders[grant->folder];
		if (grant->limits || !fstatat(folder, grant->directory, &status, 0))
			continue;
		log_event("grant %s: somebody removed its directory", grant->name);
		grant_files_remove(grant);
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

static bool recover_grant(struct arbiter *arbiter, enum state_folder folder, const char *name,
                          struct failure *failure)
{
	/* A container runtime creates an empty directory where the one to mount is missing. */
	if (!unlinkat(arbiter->state->folders[folder], name, AT_REMOVEDIR))
		return true;
	struct grant *grant = new_grant(arbiter, folder);
	if (!grant)
		return failure_set(failure, "memory", "out of memory");
	size_t length = strnlen(name, sizeof(grant->directory) - 1); /* is_directory_name bounds it */
	memcpy(grant->directory, name, length);
	memcpy(grant->name, name, length);
	grant->owner_uid = grant_directory_owner(grant->directory);
	int listener = -1, owner = -1;
	int error = grant_files_open(grant, &listener);
	if (error == -ENOTDIR || error == -ENOENT || error == -ELOOP) {
		log_event("%s/%s/%s is not a grant: ignored", arbiter->state->path,
		          state_folder_name(folder), name);
		free(grant);
		return true;
	}
	insert(grant);
	if (!error && grant->limits) {
		find_gpus(grant);
		grant_state_repair(grant);
		bool has_owner = grant_life(grant) != ALIQUOT_ENDED && grant->limits->owner_pid;
		owner = has_owner
		            ? identity_reopen(grant->limits->owner_pid, grant->limits->owner_start_time)
		            : -ESRCH;
		if (owner < 0 && owner != -ESRCH)
			error = owner;
		else if (owner < 0 && has_owner)
			set_ended(grant);
	}
	int watching = watch_both(grant, listener, owner);
	if (!error)
		error = watching;
	if (!error && grant->limits)
		error = credit_add_grant(grant);
	if (!error && grant->limits)
		error = joining_recover(grant);
	residence_wake(grant);
	if (error)
		return failure_set(failure, "state", "grant %s cannot be recovered: %s", name,
		                   strerror(-error));
	static const char *const lives[] = {"owner dead", "kept", "ended on request"};
	log_event("grant %s recovered: %u processes, %s, %s", grant->name, grant->process_count,
	          owner >= 0 ? "owner alive" : lives[grant_life(grant)],
	          enum_name(&enum_names_grant_state, grant_state(grant)));
	end_if_unused(grant);
	return true;
}

/* A name, or "UID:" and a name. */
static bool is_directory_name(const char *text)
{
	const char *colon = strchr(text, ':');
	size_t digits = colon ? (size_t)(colon - text) : 0;
	if (colon && (!digits || digits > 10 || strspn(text, "0123456789") != digits))
		return false;
	return strlen(text) < ALIQUOT_NAME_SIZE &&
	       control_is_name(colon ? colon + 1 : text, strlen(colon ? colon + 1 : text));
}

struct recovery {
	struct arbiter *arbiter;
	enum state_folder folder;
	struct failure *failure;
	bool failed;
};

static void recover_entry(int directory, const char *name, void *context)
{
	struct recovery *recovery = context;
	(void)directory;
	if (!recovery->failed && is_directory_name(name))
		recovery->failed = !recover_grant(recovery->arbiter, recovery->folder, name,
		                                  recovery->failure);
}

static bool recover_folder(struct arbiter *arbiter, enum state_folder folder,
                           struct failure *failure)
{
	struct recovery recovery = {.arbiter = arbiter, .folder = folder, .failure = failure};
	int error = directory_walk(arbiter->state->folders[folder], ".", recover_entry, &recovery);
	if (error)
		return failure_set(failure, "state", "%s/%s: %s", arbiter->state->path,
		                   state_folder_name(folder), strerror(-error));
	return !recovery.failed;
}

/* Removes what an arbiter left in the private directory that was killed while it made or ended a
 * grant. */
static void remove_leftover(int directory, const char *name, void *context)
{
	(void)directory;
	struct arbiter *arbiter = context;
	if (!find_by_directory(arbiter, name))
		grant_files_remove_private(arbiter->state, name);
}

bool grants_recover(struct arbiter *arbiter, struct failure *failure)
{
	if (!recover_folder(arbiter, STATE_GRANTS, failure) ||
	    !recover_folder(arbiter, STATE_KEPT, failure))
		return false;
	private_directory_walk(&arbiter->state->records, remove_leftover, arbiter);
	private_directory_walk(&arbiter->state->pages, remove_leftover, arbiter);
	movers_update(arbiter);
	return state_set_version(arbiter->state, failure);
}

void grants_close_all(struct arbiter *arbiter)
{
	while (arbiter->grants)
		release(arbiter->grants);
}
