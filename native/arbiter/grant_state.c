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
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct control_slice asked = request_for(&grant->limits->slices[i]);
		const struct gpu *gpu = grant->gpus[i];
		if (!capacity_check_memory(grant->arbiter, gpu, asked.memory_bytes, grant, failure) ||
		    !capacity_check_compute(grant->arbiter, gpu, &asked, grant, failure))
			return false;
	}
	return true;
}

bool grant_state_set(struct arbiter *arbiter, const struct control_request *request,
                     struct failure *failure)
{
	struct grant *grant = grant_find_for_change(arbiter, request->name, 0, failure);
	if (!grant)
		return false;
	enum aliquot_grant_state before = grant_state(grant);
	if (before == request->grant_state)
		return true;
	if (before == ALIQUOT_GRANT_PARKED && !fits_again(grant, failure))
		return false;
	write_state(grant, request->grant_state);
	credit_change_grant(grant);
	log_event("grant %s is %s", grant->name,
	          enum_name(&enum_names_grant_state, request->grant_state));
	return true;
}
