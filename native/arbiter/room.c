#include "room.h"

#include "findings.h"

#include <stdio.h>

/* What the grant has of that GPU now, or NULL. */
static const struct aliquot_slice_limits *slice_on(const struct grant *grant, const struct gpu *gpu)
{
	if (!grant || !grant->limits || grants_hold(grant) == ALIQUOT_HOLD_PARKED)
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

bool room_on_gpu(const struct gpu *gpu, uint64_t bytes, struct failure *failure)
{
	if (bytes <= gpu->memory_bytes)
		return true;
	return failure_set(failure, "no-room", "GPU %u (%s) has %llu MiB: %llu MiB asked", gpu->index,
	                   gpu->uuid_text, mib_of(gpu->memory_bytes), mib_for(bytes));
}

bool room_for_memory(struct arbiter *arbiter, const struct gpu *gpu, uint64_t bytes,
                     const struct grant *but, struct failure *failure)
{
	const struct aliquot_slice_limits *own = slice_on(but, gpu);
	uint64_t granted = grants_granted_bytes(arbiter, gpu);
	if (own)
		granted -= atomic_load(&own->limit_bytes);
	uint64_t left = granted < gpu->memory_bytes ? gpu->memory_bytes - granted : 0;
	if (bytes <= left)
		return true;
	return failure_set(
		failure, "no-room",
		"GPU %u (%s) has %llu MiB left of %llu MiB (%llu MiB granted): %llu MiB asked", gpu->index,
		gpu->uuid_text, mib_of(left), mib_of(gpu->memory_bytes), mib_for(granted), mib_for(bytes));
}

/* ", NAME has N %" for each that has some, as far as there is place. */
static void write_holders(struct arbiter *arbiter, const struct gpu *gpu, const struct grant *but,
                          char *out, size_t size)
{
	size_t used = 0;
	*out = 0;
	for (const struct grant *grant = arbiter->grants; grant && used < size; grant = grant->next) {
		uint32_t share = share_of(slice_on(grant, gpu));
		if (grant != but && share)
			used += (size_t)snprintf(out + used, size - used, ", %s has %u %%", grant->name, share);
	}
}

bool room_for_compute(struct arbiter *arbiter, const struct gpu *gpu,
                      const struct control_slice *asked, const struct grant *but,
                      struct failure *failure)
{
	uint32_t taken = 0;
	if (asked->priority == ALIQUOT_BACKGROUND)
		return true;
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (grant != but)
			taken += share_of(slice_on(grant, gpu));
	uint32_t left = taken < 100 ? 100 - taken : 0;
	if (asked->compute_percent <= left)
		return true;
	char holders[256];
	write_holders(arbiter, gpu, but, holders, sizeof(holders));
	return failure_set(failure, "no-room",
	                   "GPU %u (%s) has %u %% of its compute left: %u %% asked%s", gpu->index,
	                   gpu->uuid_text, left, asked->compute_percent, holders);
}

bool room_for_policy(struct arbiter *arbiter, const struct gpu *gpu, enum aliquot_policy policy,
                     struct failure *failure)
{
	if (policy != ALIQUOT_HARD)
		return true;
	findings_look(arbiter);
	if (gpu->gates != ALIQUOT_GATES_FAIL)
		return true;
	return failure_set(failure, "unsupported",
	                   "GPU %u (%s) has no gates to hold a program back at: a hard share cannot be "
	                   "kept there",
	                   gpu->index, gpu->uuid_text);
}
