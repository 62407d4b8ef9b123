#include "grant_state.h"

#include "capacity.h"
#include "enum_names.h"
#include "log.h"

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

static bool fits_again(const struct grant *grant, struct failure *failure)
{
	struct newcomer newcomer = {.name = grant_plain_name(grant),
	                            .owner_uid = grant->owner_uid,
	                            .neighbours = &grant->record->neighbours,
	                            .grant = grant};
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct control_slice asked = request_for(&grant->limits->slices[i]);
		const struct gpu *gpu = grant->gpus[i];
		if (!capacity_check_memory(grant->arbiter, gpu, asked.memory_bytes, grant, failure) ||
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
	if (before == ALIQUOT_GRANT_PARKED && !fits_again(grant, failure))
		return false;
	write_state(grant, state);
	credit_change_grant(grant);
	log_event("grant %s is %s", grant->name, enum_name(&enum_names_grant_state, state));
	return true;
}
