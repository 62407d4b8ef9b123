#include "resize.h"

#include "aliquot/ledger.h"
#include "log.h"
#include "room.h"

#include <string.h>

#define GRADUAL_TRIES 8

/* One slice of the request and the grant's slice that it means. */
struct change {
	const struct control_slice *asked;
	uint32_t index;
	struct aliquot_slice_limits *limits;
	struct control_slice wanted; /* with what stays as it is */
	uint64_t before;             /* its memory */
};

static bool find_slice(struct grant *grant, const struct control_slice *asked,
                       struct change *change, struct failure *failure)
{
	char uuid[ALIQUOT_UUID_TEXT_SIZE];
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct aliquot_slice_limits *limits = &grant->limits->slices[i];
		if (memcmp(limits->uuid, asked->uuid, sizeof(limits->uuid)))
			continue;
		*change = (struct change){.asked = asked, .index = i, .limits = limits};
		return true;
	}
	aliquot_uuid_write(asked->uuid, uuid);
	return failure_set(failure, "no-such-slice", "grant %s has no slice of %s", grant->name, uuid);
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

/* Only what is asked for is asked about: a grant that is over-committed from before can shrink. A
 * parked one takes nothing of the others' now: what it is to have is looked for when it comes back,
 * and must be on the GPU at all. */
static bool has_room(struct grant *grant, const struct change *change, struct failure *failure)
{
	struct arbiter *arbiter = grant->arbiter;
	const struct gpu *gpu = grant->gpus[change->index];
	const struct control_slice *wanted = &change->wanted;
	bool parked = grants_hold(grant) == ALIQUOT_HOLD_PARKED;
	if (wanted->memory_bytes > change->before &&
	    !(parked ? room_on_gpu(gpu, wanted->memory_bytes, failure)
	             : room_for_memory(arbiter, gpu, wanted->memory_bytes, grant, failure)))
		return false;
	if (!parked && wanted->given & (CONTROL_COMPUTE | CONTROL_PRIORITY) &&
	    !room_for_compute(arbiter, gpu, wanted, grant, failure))
		return false;
	return !(wanted->given & CONTROL_POLICY) ||
	       room_for_policy(arbiter, gpu, wanted->policy, failure);
}

static bool refuse_in_use(const struct grant *grant, const struct change *change, uint64_t used,
                          struct failure *failure)
{
	uint64_t driver = atomic_load(&change->limits->driver_bytes);
	return failure_set(failure, "in-use",
	                   "grant %s uses %llu MiB of GPU %u (%llu of them the driver's): it cannot "
	                   "be made %llu MiB",
	                   grant->name, mib_for(used), grant->gpus[change->index]->index,
	                   mib_for(driver), mib_of(change->wanted.memory_bytes));
}

/* Gradually, as little above what is wanted as what is in use allows; where programs take more
 * again and again meanwhile, the limit stays. */
static void lower_gradually(struct aliquot_usage_slice *usage, const struct change *change)
{
	uint64_t bytes = change->wanted.memory_bytes, used;
	for (int tries = 0; tries < GRADUAL_TRIES && bytes < change->before; tries++) {
		if (ledger_set_limit(usage, change->limits, bytes, &used))
			return;
		bytes = used;
	}
}

/* False: one would be below what is in use, and all are as before. */
static bool lower(struct grant *grant, const struct change *changes, uint32_t count, bool gradual,
                  struct failure *failure)
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
		if (ledger_set_limit(usage, change->limits, change->wanted.memory_bytes, &used))
			continue;
		while (i--)
			ledger_set_limit(&grant->usage->slices[changes[i].index], changes[i].limits,
			                 changes[i].before, &ignored);
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
			                 changes[i].wanted.memory_bytes, &ignored);
}

/* Whether it was another before. */
static bool set(_Atomic uint32_t *setting, uint32_t value)
{
	return atomic_exchange(setting, value) != value;
}

static bool set_compute(const struct change *change)
{
	const struct control_slice *wanted = &change->wanted;
	bool percent = set(&change->limits->compute_percent, wanted->compute_percent);
	bool policy = set(&change->limits->policy, (uint32_t)wanted->policy);
	bool priority = set(&change->limits->priority, (uint32_t)wanted->priority);
	return percent || policy || priority;
}

static void say(const struct grant *grant, const struct change *change)
{
	static const char *const policies[] = {"elastic", "hard"};
	static const char *const priorities[] = {"normal", "latency", "background"};
	log_event("grant %s resized on GPU %u: %llu bytes (%llu before), compute %u %%, %s, %s",
	          grant->name, grant->gpus[change->index]->index,
	          (unsigned long long)atomic_load(&change->limits->limit_bytes),
	          (unsigned long long)change->before, change->wanted.compute_percent,
	          policies[change->wanted.policy], priorities[change->wanted.priority]);
}

bool resize(struct arbiter *arbiter, const struct control_request *request, uint32_t uid,
            struct resized *out, struct failure *failure)
{
	struct change changes[ALIQUOT_MAX_GPUS];
	struct grant *grant = grants_find_to_change(arbiter, request->name, uid, failure);
	if (!grant)
		return false;
	for (uint32_t i = 0; i < request->slice_count; i++) {
		if (!find_slice(grant, &request->slices[i], &changes[i], failure))
			return false;
		fill_in(&changes[i]);
		if (!has_room(grant, &changes[i], failure))
			return false;
	}
	if (!lower(grant, changes, request->slice_count, request->gradual, failure))
		return false;
	raise_limits(grant, changes, request->slice_count);
	for (uint32_t i = 0; i < request->slice_count; i++) {
		bool changed = set_compute(&changes[i]);
		uint64_t bytes = atomic_load(&changes[i].limits->limit_bytes);
		out->slices[i].memory_bytes = bytes;
		out->slices[i].reached = bytes == changes[i].wanted.memory_bytes;
		if (changed || bytes != changes[i].before)
			say(grant, &changes[i]);
	}
	credit_change_grant(grant);
	return true;
}
