#include "hold.h"

#include "log.h"
#include "room.h"

static void write_hold(struct grant *grant, enum aliquot_hold hold)
{
	for (uint32_t i = 0; i < grant->slice_count; i++)
		atomic_store(&grant->limits->slices[i].hold, (uint32_t)hold);
}

void hold_agree(struct grant *grant)
{
	write_hold(grant, grants_hold(grant));
}

/* What the slice is to have again. */
static struct control_slice asked_by(const struct aliquot_slice_limits *slice)
{
	return (struct control_slice){
		.memory_bytes = atomic_load(&slice->limit_bytes),
		.compute_percent = atomic_load(&slice->compute_percent),
		.priority = (enum aliquot_priority)atomic_load(&slice->priority),
	};
}

static bool has_room(const struct grant *grant, struct failure *failure)
{
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		struct control_slice asked = asked_by(&grant->limits->slices[i]);
		const struct gpu *gpu = grant->gpus[i];
		if (!room_for_memory(grant->arbiter, gpu, asked.memory_bytes, grant, failure) ||
		    !room_for_compute(grant->arbiter, gpu, &asked, grant, failure))
			return false;
	}
	return true;
}

bool hold_change(struct arbiter *arbiter, const struct control_request *request,
                 struct failure *failure)
{
	struct grant *grant = grants_find_to_change(arbiter, request->name, 0, failure);
	if (!grant)
		return false;
	enum aliquot_hold before = grants_hold(grant);
	if (before == request->hold)
		return true;
	if (before == ALIQUOT_HOLD_PARKED && !has_room(grant, failure))
		return false;
	write_hold(grant, request->hold);
	credit_change_grant(grant);
	log_event("grant %s is %s", grant->name, grants_hold_word(request->hold));
	return true;
}
