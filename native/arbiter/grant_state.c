#include "grant_state.h"

#include "capacity.h"
#include "enum_names.h"
#include "log.h"
#include "mps.h"
#include "overcommit.h"

static void write_state(struct grant *grant, enum aliquot_grant_state state)
{
	for (uint32_t i = 0; i < grant->slice_count; i++)
		atomic_store(&grant->limits->slices[i].grant_state, (uint32_t)state);
	grant_publish(grant, GRANT_NO_SLOT);
}

void grant_state_repair(struct grant *grant)
{
	write_state(grant, grant_state(grant));
}

/* The slice as a request for what it has. */
static struct control_slice request_for(const struct aliquot_slice_limits *slice)
{
	return (struct control_slice){
		.memory_bytes = atomic_load(&slice->limit_bytes),
		.compute_percent = atomic_load(&slice->compute_percent),
		.priority = (enum aliquot_priority)atomic_load(&slice->priority),
	};
}

/* Whether its memory has room again. One that takes turns may not have its turn. */
static bool has_room(const struct grant *grant, const struct gpu *gpu, uint64_t bytes, bool waits,
                     struct failure *failure)
{
	struct arbiter *arbiter = grant->arbiter;
	if (!grant->record->turn.takes)
		return capacity_check_memory(arbiter, gpu, bytes, grant, failure);
	struct overcommit_slice asked = {gpu, bytes, grant->record->overcommit_percent};
	return overcommit_check(arbiter, &asked, grant, failure) &&
	       (waits || capacity_check_present(arbiter, gpu, bytes, grant, failure));
}

/* `waits`: it may wait for its turn first. */
static bool fits_again(const struct grant *grant, bool waits, struct failure *failure)
{
	if (grant_is_off(grant)) /* all but the room is still its own */
		return capacity_check_present(grant->arbiter, grant->gpus[0],
		                              atomic_load(&grant->limits->slices[0].limit_bytes), grant,
		                              failure);
	struct newcomer newcomer = {.name = grant_plain_name(grant),
	                            .owner_uid = grant->owner_uid,
	                            .neighbours = &grant->record->neighbours,
	                            .grant = grant};
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct control_slice asked = request_for(&grant->limits->slices[i]);
		const struct gpu *gpu = grant->gpus[i];
		if (!has_room(grant, gpu, asked.memory_bytes, waits, failure) ||
		    !capacity_check_compute(grant->arbiter, gpu, &asked, grant->owner_uid, grant,
		                            failure) ||
		    !neighbours_check(grant->arbiter, gpu, &newcomer, failure))
			return false;
	}
	struct user_use none = {.grants = 1}, use = none;
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct control_slice asked = request_for(&grant->limits->slices[i]);
		users_add(&use, &asked, users_alone_bytes(grant, i));
	}
	return users_check(grant->arbiter, grant->owner_uid, &none, &use, failure);
}

bool grant_state_set(struct grant *grant, enum aliquot_grant_state state, struct failure *failure)
{
	enum aliquot_grant_state before = grant_state(grant);
	if (before == state)
		return true;
	if (before == ALIQUOT_GRANT_ACTIVE && !mps_may_leave(grant, failure))
		return false;
	if (before == ALIQUOT_GRANT_PARKED && !fits_again(grant, false, failure))
		return false;
	write_state(grant, state);
	credit_change_grant(grant);
	log_event("grant %s is %s", grant->name, enum_name(&enum_names_grant_state, state));
	return true;
}

bool grant_state_may_wait(const struct grant *grant, struct failure *failure)
{
	return fits_again(grant, true, failure);
}
