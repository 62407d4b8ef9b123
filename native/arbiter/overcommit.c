#include "overcommit.h"

#include "capacity.h"
#include "mover_processes.h"
#include "movers.h"
#include "residence.h"
#include "spill.h"

/* Whether it takes turns with memory on that GPU, and is not suspended. */
static bool takes_turns(const struct grant *grant, const struct gpu *gpu)
{
	return grant->record && grant->record->turn.takes && grant->gpus[0] == gpu &&
	       !capacity_is_away(grant);
}

/* Of a slice's bytes, what stays when it is off its GPU: `fixed` is what its programs say. */
static uint64_t staying(uint64_t bytes, uint64_t fixed)
{
	uint64_t stays = fixed > OVERCOMMIT_FIXED_BYTES ? fixed : OVERCOMMIT_FIXED_BYTES;
	return bytes < stays ? bytes : stays;
}

/* The slices of a GPU: all limits, those that never move, and of those that take turns what stays, and the most
 * that one has beside what stays of it. */
struct load {
	uint64_t all, rigid, fixed, movable;
	uint64_t percent; /* what all that take turns allow; 0: whatever the arbiter does */
};

static uint64_t lower(uint64_t one, uint64_t other)
{
	return !one || (other && other < one) ? other : one;
}

static struct load load_of(struct arbiter *arbiter, const struct gpu *gpu,
                           const struct grant *except)
{
	struct load load = {.all = movers_bytes(arbiter, gpu)};
	load.rigid = load.all;
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		uint64_t its = grant == except ? 0 : capacity_bytes_on(grant, gpu);
		load.all += its;
		if (grant == except || !takes_turns(grant, gpu)) {
			load.rigid += its;
			continue;
		}
		load.percent = lower(load.percent, grant->record->overcommit_percent);
		uint64_t stays = staying(its, residence_fixed_bytes(grant));
		load.movable = its - stays > load.movable ? its - stays : load.movable;
		load.fixed += stays;
	}
	return load;
}

static uint64_t excess_of(uint64_t all, const struct gpu *gpu)
{
	return all > gpu->memory_bytes ? all - gpu->memory_bytes : 0;
}

/* What the host needs for turns on all GPUs. */
static uint64_t turns_bytes(struct arbiter *arbiter, const struct overcommit_slice *asked,
                            const struct grant *except)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < arbiter->nvml.gpu_count; i++) {
		const struct gpu *gpu = &arbiter->nvml.gpus[i];
		uint64_t more = asked && asked->gpu == gpu ? asked->bytes : 0;
		sum += 2 * excess_of(load_of(arbiter, gpu, except).all + more, gpu);
	}
	return sum;
}

uint64_t overcommit_host_bytes(struct arbiter *arbiter, const struct overcommit_slice *asked,
                               const struct grant *except)
{
	uint64_t sum = turns_bytes(arbiter, asked, except);
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		struct residence_sum its;
		if (grant == except || !residence_is_swappable(grant) ||
		    (grant->record->turn.takes && !capacity_is_away(grant)))
			continue;
		residence_sum(grant, &its);
		sum += its.away_bytes;
	}
	return sum;
}

/* What is about to leave for another reason than turns, and is not in overcommit_host_bytes yet: several grants may
 * be on their way at once. */
static uint64_t leaving_bytes(const struct arbiter *arbiter, const struct grant *except)
{
	uint64_t sum = 0;
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		struct residence_sum its;
		if (grant == except || !residence_is_away(grant) || grant->record->turn.is_others ||
		    grant_state(grant) == ALIQUOT_GRANT_PARKED)
			continue;
		residence_sum(grant, &its);
		sum += its.movable_bytes - (grant->record->turn.takes ? 0 : its.away_bytes);
	}
	return sum;
}

bool overcommit_may_leave(struct arbiter *arbiter, const struct grant *grant,
                          struct failure *failure)
{
	uint64_t most = arbiter->movers.processes->most_bytes;
	uint64_t set_aside = overcommit_host_bytes(arbiter, NULL, grant) +
	                     spill_granted_bytes(arbiter) + leaving_bytes(arbiter, grant);
	struct residence_sum its;
	if (!residence_is_swappable(grant) ||
	    residence_is_away(grant)) /* it cannot, or shall already */
		return true;
	residence_sum(grant, &its);
	if (!turns_bytes(arbiter, NULL, grant) || its.movable_bytes + set_aside <= most)
		return true;
	return failure_set(
		failure, "no-host-memory",
		"the host may have %llu MiB of memory that leaves GPUs, and %llu MiB of it are set aside: "
		"%llu MiB would leave",
		mib_of(most), mib_for(set_aside), mib_for(its.movable_bytes));
}

static bool has_host(struct arbiter *arbiter, const struct overcommit_slice *asked,
                     const struct grant *except, struct failure *failure)
{
	uint64_t most = arbiter->movers.processes->most_bytes;
	uint64_t spilled = spill_granted_bytes(arbiter);
	uint64_t needed = overcommit_host_bytes(arbiter, asked, except) + spilled;
	if (needed <= most)
		return true;
	return failure_set(
		failure, "no-capacity",
		"the host may have %llu MiB of memory that leaves GPUs, and %llu MiB are needed for slices "
		"that take turns, copies and --spill: %llu MiB of GPU %u requested",
		mib_of(most), mib_for(needed), mib_for(asked->bytes), asked->gpu->index);
}

bool overcommit_check(struct arbiter *arbiter, const struct overcommit_slice *asked,
                      const struct grant *except, struct failure *failure)
{
	const struct gpu *gpu = asked->gpu;
	uint64_t bytes = asked->bytes;
	struct load load = load_of(arbiter, gpu, except);
	uint64_t percent = lower(lower(load.percent, asked->percent), arbiter->overcommit_percent);
	uint64_t most = gpu->memory_bytes * percent / 100;
	bool fits = load.all <= gpu->memory_bytes && bytes <= gpu->memory_bytes - load.all;
	if (fits) /* nothing must leave */
		return true;
	if (load.all > most || bytes > most - load.all)
		return failure_set(
			failure, "no-capacity",
			"GPU %u (%s) has %llu MiB, swappable slices may have %llu %% of that, and %llu MiB are "
			"granted: %llu MiB requested",
			gpu->index, gpu->uuid_text, mib_of(gpu->memory_bytes), (unsigned long long)percent,
			mib_for(load.all), mib_for(bytes));
	/* Each by itself, beside what the others cannot move; and at least 1 GiB beside all that is fixed. */
	uint64_t stays = staying(bytes, except ? residence_fixed_bytes(except) : 0);
	uint64_t movable = bytes - stays > load.movable ? bytes - stays : load.movable;
	if (movable < OVERCOMMIT_FIXED_BYTES)
		movable = OVERCOMMIT_FIXED_BYTES;
	uint64_t alone = load.rigid + load.fixed + stays + movable;
	if (alone > gpu->memory_bytes)
		return failure_set(
			failure, "no-capacity",
			"GPU %u (%s) has %llu MiB: %llu MiB requested, and %llu MiB are needed for one "
			"swappable slice with what does not move",
			gpu->index, gpu->uuid_text, mib_of(gpu->memory_bytes), mib_for(bytes), mib_for(alone));
	return has_host(arbiter, asked, except, failure);
}
