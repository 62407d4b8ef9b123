#include "wants.h"

#include "capacity.h"
#include "loop.h"
#include "parking.h"
#include "residence.h"
#include "users.h"

#include <string.h>

#define WANT_NS (10 * SECOND_NS)

/* Memory and compute time of a GPU. */
struct room {
	uint64_t bytes;
	uint32_t percent;
};

static void add(struct room *to, const struct grant *grant)
{
	const struct aliquot_slice_limits *slice = &grant->limits->slices[0];
	uint64_t limit = atomic_load(&slice->limit_bytes), fixed = residence_fixed_bytes(grant);
	to->bytes += limit > fixed ? limit - fixed : 0;
	if (atomic_load(&slice->priority) != ALIQUOT_BACKGROUND)
		to->percent += atomic_load(&slice->compute_percent);
}

static bool leaves(const struct grant *grant)
{
	return grant->record && grant->record->parked.step == PARKING_LEAVING;
}

static bool holds(const struct room *has, uint64_t bytes, uint32_t percent)
{
	return has->bytes >= bytes && has->percent >= percent;
}

/* Whether `bytes` and `percent` of the GPU, of which `except` has some, become free only if idle grants
 * give up theirs. */
static bool needs_idle(struct arbiter *arbiter, const struct gpu *gpu, uint64_t bytes,
                       uint32_t percent, const struct grant *except)
{
	struct room has = {0};
	capacity_free(arbiter, gpu, except, &has.bytes, &has.percent);
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (grant->gpus[0] == gpu && leaves(grant))
			add(&has, grant);
	if (holds(&has, bytes, percent))
		return false;
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (grant->gpus[0] == gpu && grant->parking.due_since)
			add(&has, grant);
	return holds(&has, bytes, percent);
}

bool wants_room_for(const struct grant *returning)
{
	const struct aliquot_slice_limits *slice = &returning->limits->slices[0];
	struct arbiter *arbiter = returning->arbiter;
	bool is_background = atomic_load(&slice->priority) == ALIQUOT_BACKGROUND;
	arbiter->returns = true;
	bool needs = needs_idle(arbiter, returning->gpus[0], atomic_load(&slice->limit_bytes),
	                        is_background ? 0 : atomic_load(&slice->compute_percent), returning);
	arbiter->returns = false;
	return needs;
}

bool wants_room_on(struct arbiter *arbiter, const struct gpu *gpu)
{
	for (unsigned i = 0; i < WANTS_MOST; i++) {
		const struct want *want = &arbiter->wants[i];
		if (want->gpu == gpu && want->until > loop_now() &&
		    needs_idle(arbiter, gpu, want->bytes, want->percent, NULL))
			return true;
	}
	return false;
}

static void note(struct arbiter *arbiter, const struct want *new)
{
	struct want *place = &arbiter->wants[0];
	for (unsigned i = 0; i < WANTS_MOST; i++) {
		struct want *old = &arbiter->wants[i];
		bool is_same = old->gpu == new->gpu && old->bytes == new->bytes &&
		               old->percent == new->percent;
		if (is_same || (old->until < place->until))
			place = old;
		if (is_same)
			break;
	}
	*place = *new;
}

/* Whether the user may have all of it: nobody's memory leaves for what is refused later. */
static bool may_have(struct arbiter *arbiter, uint32_t uid, const struct control_request *request,
                     struct failure *failure)
{
	struct user_use use = {.grants = 1};
	for (uint32_t i = 0; i < request->slice_count; i++)
		users_add(&use, &request->slices[i], 0);
	return users_check(arbiter, uid, &(struct user_use){0}, &use, failure);
}

bool wants_add(struct arbiter *arbiter, uint32_t uid, const struct control_request *request,
               struct failure *failure)
{
	if (!may_have(arbiter, uid, request, failure))
		return false;
	for (uint32_t i = 0; i < request->slice_count; i++) {
		const struct control_slice *asked = &request->slices[i];
		bool is_background = asked->priority == ALIQUOT_BACKGROUND;
		struct want want = {.gpu = nvml_find_present(&arbiter->nvml, asked->uuid, asked->instance),
		                    .bytes = asked->memory_bytes,
		                    .percent = is_background ? 0 : asked->compute_percent,
		                    .until = loop_now() + WANT_NS};
		char uuid[ALIQUOT_UUID_TEXT_SIZE];
		aliquot_uuid_write(asked->uuid, asked->instance, uuid);
		if (!want.gpu)
			return failure_set(failure, "no-such-gpu", "this machine has no GPU %s", uuid);
		note(arbiter, &want);
	}
	return true;
}

void wants_met(const struct grant *grant)
{
	for (uint32_t i = 0; i < grant->slice_count; i++)
		for (unsigned k = 0; k < WANTS_MOST; k++)
			if (grant->arbiter->wants[k].gpu == grant->gpus[i])
				grant->arbiter->wants[k] = (struct want){0};
}
