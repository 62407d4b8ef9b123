#include "resize.h"

#include "aliquot/ledger.h"
#include "capacity.h"
#include "enum_names.h"
#include "log.h"
#include "movers.h"
#include "overcommit.h"

#include <string.h>

#define GRADUAL_TRIES 8

/* One slice of the request and the grant's slice that it changes. */
struct change {
	const struct control_slice *asked;
	uint32_t index;
	struct aliquot_slice_limits *limits, *view;
	struct control_slice wanted; /* with the settings that stay */
	uint64_t before;             /* its memory limit */
};

static bool find_slice(struct grant *grant, const struct control_slice *asked,
                       struct change *change, struct failure *failure)
{
	char uuid[ALIQUOT_UUID_TEXT_SIZE];
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct aliquot_slice_limits *limits = &grant->limits->slices[i];
		if (memcmp(limits->uuid, asked->uuid, sizeof(limits->uuid)))
			continue;
		*change = (struct change){.asked = asked,
		                          .index = i,
		                          .limits = limits,
		                          .view = &grant->view->slices[i]};
		return true;
	}
	aliquot_uuid_write(asked->uuid, asked->instance, uuid);
	return failure_set(failure, "no-such-slice", "grant %s has no slice of %s",
	                   grant_name_for(grant, failure->reader), uuid);
}

static void fill_in(struct change *change)
{
	struct control_slice *wanted = &change->wanted;
	*wanted = *change->asked;
	change->before = atomic_load(&change->limits->limit_bytes);
	if (!(wanted->given & CONTROL_MEMORY))
		wanted->memory_bytes = change->before;
	if (!(wanted->given & CONTROL_COMPUTE))
		wanted->compute_percent = atomic_load(&change->limits->compute_percent);
	if (!(wanted->given & CONTROL_POLICY))
		wanted->policy = (enum aliquot_policy)atomic_load(&change->limits->policy);
	if (!(wanted->given & CONTROL_PRIORITY))
		wanted->priority = (enum aliquot_priority)atomic_load(&change->limits->priority);
}

/* Whether its slices are free for others. One that is off its GPU for others' turn has them. */
static bool is_parked(const struct grant *grant)
{
	return grant_state(grant) == ALIQUOT_GRANT_PARKED && !grant_is_off(grant);
}

/* Whether there is memory for that limit. */
static bool has_memory(struct grant *grant, const struct gpu *gpu, uint64_t bytes,
                       struct failure *failure)
{
	struct arbiter *arbiter = grant->arbiter;
	if (is_parked(grant))
		return capacity_check_gpu(gpu, bytes, failure);
	if (!grant->record->turn.takes)
		return capacity_check_memory(arbiter, gpu, bytes, grant, failure);
	struct overcommit_slice asked = {gpu, bytes, grant->record->overcommit_percent};
	return overcommit_check(arbiter, &asked, grant, failure) &&
	       (grant_is_off(grant) || capacity_check_present(arbiter, gpu, bytes, grant, failure));
}

/* Checks only settings that are given, so that a grant which is over-committed already can shrink.
 * Slices of a parked grant take nothing now: they must fit the GPU, and free capacity is checked when
 * the grant leaves the parked state. */
static bool fits(struct grant *grant, const struct change *change, struct failure *failure)
{
	struct arbiter *arbiter = grant->arbiter;
	const struct gpu *gpu = grant->gpus[change->index];
	const struct control_slice *wanted = &change->wanted;
	if (wanted->memory_bytes > change->before &&
	    !has_memory(grant, gpu, wanted->memory_bytes, failure))
		return false;
	if (!is_parked(grant) && wanted->given & (CONTROL_COMPUTE | CONTROL_PRIORITY) &&
	    !capacity_check_compute(arbiter, gpu, wanted, grant->owner_uid, grant, failure))
		return false;
	return !(wanted->given & CONTROL_POLICY) ||
	       capacity_check_policy(grant, change->index, wanted->policy, failure);
}

static bool refuse_in_use(const struct grant *grant, const struct change *change, uint64_t used,
                          struct failure *failure)
{
	uint64_t driver = atomic_load(&change->limits->driver_bytes);
	return failure_set(
		failure, "in-use",
		"grant %s uses %llu MiB of GPU %u (%llu of them the driver's): its limit cannot "
		"be %llu MiB",
		grant_name_for(grant, failure->reader), mib_for(used), grant->gpus[change->index]->index,
		mib_for(driver), mib_of(change->wanted.memory_bytes));
}

/* Lowers the limit to what is in use now, or to the requested limit if less is in use. The limit stays
 * if programs keep allocating meanwhile. */
static void lower_gradually(struct aliquot_usage_slice *usage, const struct change *change)
{
	uint64_t bytes = change->wanted.memory_bytes, used;
	for (int tries = 0; tries < GRADUAL_TRIES && bytes < change->before; tries++) {
		if (ledger_set_limit(usage, change->limits, change->view, bytes, &used))
			return;
		bytes = used;
	}
}

/* False: a limit would be below what is in use; all limits are as before. */
static bool lower_limits(struct grant *grant, const struct change *changes, uint32_t count,
                         bool gradual, struct failure *failure)
{
	uint64_t used, ignored;
	for (uint32_t i = 0; i < count; i++) {
		const struct change *change = &changes[i];
		struct aliquot_usage_slice *usage = &grant->usage->slices[change->index];
		if (change->wanted.memory_bytes >= change->before)
			continue;
		if (gradual) {
			lower_gradually(usage, change);
			continue;
		}
		if (ledger_set_limit(usage, change->limits, change->view, change->wanted.memory_bytes,
		                     &used))
			continue;
		while (i--)
			ledger_set_limit(&grant->usage->slices[changes[i].index], changes[i].limits,
			                 changes[i].view, changes[i].before, &ignored);
		return refuse_in_use(grant, change, used, failure);
	}
	return true;
}

static void raise_limits(struct grant *grant, const struct change *changes, uint32_t count)
{
	uint64_t ignored;
	for (uint32_t i = 0; i < count; i++)
		if (changes[i].wanted.memory_bytes > changes[i].before)
			ledger_set_limit(&grant->usage->slices[changes[i].index], changes[i].limits,
			                 changes[i].view, changes[i].wanted.memory_bytes, &ignored);
}

/* Returns whether the value changed. */
static bool set_setting(_Atomic uint32_t *setting, uint32_t value)
{
	return atomic_exchange(setting, value) != value;
}

static bool set_compute(const struct change *change)
{
	const struct control_slice *wanted = &change->wanted;
	bool percent = set_setting(&change->limits->compute_percent, wanted->compute_percent);
	bool policy = set_setting(&change->limits->policy, (uint32_t)wanted->policy);
	bool priority = set_setting(&change->limits->priority, (uint32_t)wanted->priority);
	return percent || policy || priority;
}

static void log_change(const struct grant *grant, const struct change *change)
{
	log_event("grant %s resized on GPU %u: %llu bytes (%llu before), compute %u %%, %s, %s",
	          grant->name, grant->gpus[change->index]->index,
	          (unsigned long long)atomic_load(&change->limits->limit_bytes),
	          (unsigned long long)change->before, change->wanted.compute_percent,
	          enum_name(&enum_names_policy, change->wanted.policy),
	          enum_name(&enum_names_priority, change->wanted.priority));
}

/* The settings of a slice now. */
static struct control_slice settings_now(const struct aliquot_slice_limits *slice)
{
	return (struct control_slice){
		.memory_bytes = atomic_load(&slice->limit_bytes),
		.compute_percent = atomic_load(&slice->compute_percent),
		.priority = (enum aliquot_priority)atomic_load(&slice->priority),
	};
}

/* Whether no slice grows, neither in what it has nor in what it ranks before. */
static bool only_shrinks(const struct change *changes, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct control_slice now = settings_now(changes[i].limits);
		struct user_use before = {0}, after = {0};
		users_add(&before, &now, 0);
		users_add(&after, &changes[i].wanted, 0);
		if (users_grows(&before, &after) || now.priority != changes[i].wanted.priority)
			return false;
	}
	return true;
}

/* Whether the owner may have what the grant would need then. */
static bool is_within_user_limits(const struct grant *grant, const struct change *changes,
                                  uint32_t count, struct failure *failure)
{
	struct user_use before = users_of_grant(grant), after = {.grants = before.grants};
	if (is_parked(grant)) /* checked when it leaves that state */
		return true;
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct control_slice slice = settings_now(&grant->limits->slices[i]);
		for (uint32_t change = 0; change < count; change++)
			if (changes[change].index == i)
				slice = changes[change].wanted;
		users_add(&after, &slice, users_alone_bytes(grant, i));
	}
	return users_check(grant->arbiter, grant->owner_uid, &before, &after, failure);
}

/* Whether the limits could change as requested now; `out` has what they would become. */
static bool try_limits(const struct grant *grant, const struct change *changes, uint32_t count,
                       bool gradual, struct resized *out, struct failure *failure)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct change *change = &changes[i];
		uint64_t used = ledger_in_use(&grant->usage->slices[change->index], change->limits);
		uint64_t bytes = change->wanted.memory_bytes;
		if (bytes < change->before && used > bytes) {
			if (!gradual)
				return refuse_in_use(grant, change, used, failure);
			bytes = used < change->before ? used : change->before;
		}
		out->slices[i].memory_bytes = bytes;
		out->slices[i].reached = bytes == change->wanted.memory_bytes;
	}
	return true;
}

bool resize_grant(struct grant *grant, const struct control_request *request, bool may_grow,
                  struct resized *out, struct failure *failure)
{
	struct change changes[ALIQUOT_MAX_GPUS];
	for (uint32_t i = 0; i < request->slice_count; i++) {
		if (!find_slice(grant, &request->slices[i], &changes[i], failure))
			return false;
		fill_in(&changes[i]);
		if (!fits(grant, &changes[i], failure))
			return false;
	}
	if (!may_grow && !only_shrinks(changes, request->slice_count))
		return failure_set(failure, "pool-admits",
		                   "the pool makes the grants of this machine: users can only shrink them");
	if (!is_within_user_limits(grant, changes, request->slice_count, failure))
		return false;
	if (request->dry_run)
		return try_limits(grant, changes, request->slice_count, request->gradual, out, failure);
	if (!lower_limits(grant, changes, request->slice_count, request->gradual, failure))
		return false;
	raise_limits(grant, changes, request->slice_count);
	for (uint32_t i = 0; i < request->slice_count; i++) {
		bool changed = set_compute(&changes[i]);
		uint64_t bytes = atomic_load(&changes[i].limits->limit_bytes);
		out->slices[i].memory_bytes = bytes;
		out->slices[i].reached = bytes == changes[i].wanted.memory_bytes;
		if (changed || bytes != changes[i].before)
			log_change(grant, &changes[i]);
	}
	grant_publish(grant, GRANT_NO_SLOT);
	credit_change_grant(grant);
	movers_update(grant->arbiter);
	return true;
}
