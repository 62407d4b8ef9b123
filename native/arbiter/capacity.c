#include "capacity.h"

#include "movers.h"
#include "residence.h"

#include <stdio.h>

bool capacity_is_away(const struct grant *grant)
{
	return grant_state(grant) == ALIQUOT_GRANT_PARKED && !grant_keeps_room(grant) &&
	       !grant_is_off(grant);
}

/* The grant's slice of that GPU, or NULL: it has none, or is parked. */
static const struct aliquot_slice_limits *slice_on(const struct grant *grant, const struct gpu *gpu)
{
	if (!grant || !grant->limits || capacity_is_away(grant))
		return NULL;
	for (uint32_t i = 0; i < grant->slice_count; i++)
		if (grant->gpus[i] == gpu)
			return &grant->limits->slices[i];
	return NULL;
}

static uint32_t share_of(const struct aliquot_slice_limits *slice)
{
	if (!slice || atomic_load(&slice->priority) == ALIQUOT_BACKGROUND)
		return 0;
	return atomic_load(&slice->compute_percent);
}

uint64_t capacity_bytes_on(const struct grant *grant, const struct gpu *gpu)
{
	uint64_t sum = 0;
	bool parked = capacity_is_away(grant);
	for (uint32_t i = 0; grant->limits && i < grant->slice_count; i++)
		if (grant->gpus[i] == gpu)
			sum += parked ? residence_staying_bytes(grant)
			              : atomic_load(&grant->limits->slices[i].limit_bytes);
	return sum;
}

uint64_t capacity_granted_bytes(struct arbiter *arbiter, const struct gpu *gpu)
{
	uint64_t sum = movers_bytes(arbiter, gpu);
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		sum += capacity_bytes_on(grant, gpu);
	return sum;
}

void capacity_free(struct arbiter *arbiter, const struct gpu *gpu, const struct grant *except,
                   uint64_t *bytes, uint32_t *percent)
{
	uint64_t granted = capacity_granted_bytes(arbiter, gpu);
	uint32_t used = 0;
	if (except)
		granted -= capacity_bytes_on(except, gpu);
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (grant != except)
			used += share_of(slice_on(grant, gpu));
	*bytes = granted < gpu->memory_bytes ? gpu->memory_bytes - granted : 0;
	*percent = used < 100 ? 100 - used : 0;
}

/* Whether it is parked and returns by its turn alone, also if it was parked because it was idle. */
static bool returns_by_turn(const struct grant *grant)
{
	return grant->record && grant->record->turn.takes && grant_state(grant) == ALIQUOT_GRANT_PARKED;
}

uint64_t capacity_present_bytes(struct arbiter *arbiter, const struct gpu *gpu,
                                const struct grant *except)
{
	uint64_t sum = movers_bytes(arbiter, gpu);
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (grant != except && (!returns_by_turn(grant) || grant->gpus[0] == gpu))
			sum += returns_by_turn(grant) ? residence_staying_bytes(grant)
			                              : capacity_bytes_on(grant, gpu);
	return sum;
}

bool capacity_check_present(struct arbiter *arbiter, const struct gpu *gpu, uint64_t bytes,
                            const struct grant *except, struct failure *failure)
{
	uint64_t present = capacity_present_bytes(arbiter, gpu, except);
	if (present <= gpu->memory_bytes && bytes <= gpu->memory_bytes - present)
		return true;
	return failure_set(
		failure, "no-capacity",
		"GPU %u (%s) has %llu MiB, and others have %llu MiB of it now: %llu MiB needed", gpu->index,
		gpu->uuid_text, mib_of(gpu->memory_bytes), mib_for(present), mib_for(bytes));
}

bool capacity_check_gpu(const struct gpu *gpu, uint64_t bytes, struct failure *failure)
{
	if (bytes <= gpu->memory_bytes)
		return true;
	return failure_set(failure, "no-capacity", "GPU %u (%s) has %llu MiB: %llu MiB requested",
	                   gpu->index, gpu->uuid_text, mib_of(gpu->memory_bytes), mib_for(bytes));
}

bool capacity_check_memory(struct arbiter *arbiter, const struct gpu *gpu, uint64_t bytes,
                           const struct grant *except, struct failure *failure)
{
	uint64_t free;
	uint32_t percent;
	capacity_free(arbiter, gpu, except, &free, &percent);
	if (bytes <= free)
		return true;
	return failure_set(
		failure, "no-capacity",
		"GPU %u (%s) has %llu MiB free of %llu MiB (%llu MiB granted): %llu MiB requested",
		gpu->index, gpu->uuid_text, mib_of(free), mib_of(gpu->memory_bytes),
		mib_for(gpu->memory_bytes - free), mib_for(bytes));
}

/* Writes ", NAME has N %" for each grant with a share that the user may see, as many as fit; then what
 * all others have. */
static void write_holders(struct arbiter *arbiter, const struct gpu *gpu, uint32_t owner_uid,
                          const struct grant *except, uint32_t reader, char *out, size_t size)
{
	size_t used = 0;
	uint32_t others = 0;
	*out = 0;
	for (const struct grant *grant = arbiter->grants; grant && used < size; grant = grant->next) {
		uint32_t share = share_of(slice_on(grant, gpu));
		if (grant == except || !share)
			continue;
		if (grant->owner_uid == owner_uid || callers_is_privileged(owner_uid))
			used += (size_t)snprintf(out + used, size - used, ", %s has %u %%",
			                         grant_name_for(grant, reader), share);
		else
			others += share;
	}
	if (others && used < size)
		snprintf(out + used, size - used, ", other users have %u %%", others);
}

bool capacity_check_compute(struct arbiter *arbiter, const struct gpu *gpu,
                            const struct control_slice *asked, uint32_t owner_uid,
                            const struct grant *except, struct failure *failure)
{
	uint64_t bytes;
	uint32_t free;
	if (asked->priority == ALIQUOT_BACKGROUND)
		return true;
	capacity_free(arbiter, gpu, except, &bytes, &free);
	if (asked->compute_percent <= free)
		return true;
	char holders[256];
	write_holders(arbiter, gpu, owner_uid, except, failure->reader, holders, sizeof(holders));
	return failure_set(failure, "no-capacity",
	                   "GPU %u (%s) has %u %% of its compute free: %u %% requested%s", gpu->index,
	                   gpu->uuid_text, free, asked->compute_percent, holders);
}

bool capacity_check_policy(struct grant *grant, uint32_t slice, enum aliquot_policy policy,
                           struct failure *failure)
{
	struct credit_figures figures;
	if (policy != ALIQUOT_HARD)
		return true;
	credit_look(&grant->arbiter->credit);
	credit_read(grant, slice, &figures);
	if (figures.gates != ALIQUOT_GATES_FAIL && figures.gates != ALIQUOT_GATES_INVALID)
		return true;
	return failure_set(failure, "unsupported",
	                   "gates do not work for a process of grant %s on GPU %u: a hard share cannot "
	                   "be enforced",
	                   grant_name_for(grant, failure->reader), grant->gpus[slice]->index);
}
