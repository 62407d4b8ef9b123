#include "neighbours.h"

#include "grant.h"

#include <string.h>

static const char *label_of(const char *name, const struct neighbours *neighbours)
{
	return *neighbours->label ? neighbours->label : name;
}

static bool names(const struct neighbours *neighbours, const char *label)
{
	for (unsigned i = 0; i < NEIGHBOURS_MOST; i++)
		if (*neighbours->apart[i] && !strcmp(neighbours->apart[i], label))
			return true;
	return false;
}

static bool has_slice_of(const struct grant *grant, const struct gpu *gpu)
{
	if (!grant->record || (grant_state(grant) == ALIQUOT_GRANT_PARKED && !grant_is_off(grant)))
		return false;
	for (uint32_t i = 0; i < grant->slice_count; i++)
		if (grant->gpus[i] == gpu)
			return true;
	return false;
}

/* How the newcomer's user names the grant in a sentence. */
static const char *told(const struct grant *grant, const struct newcomer *newcomer)
{
	return grant->owner_uid == newcomer->owner_uid ? grant_plain_name(grant) : "another user's";
}

/* Whether the two accept each other on that GPU. */
static bool accept(const struct gpu *gpu, const struct newcomer *newcomer,
                   const struct grant *grant, struct failure *failure)
{
	const struct neighbours *new = newcomer->neighbours, *old = &grant->record->neighbours;
	const char *new_label = label_of(newcomer->name, new);
	const char *old_label = label_of(grant_plain_name(grant), old);
	if (old->alone)
		return failure_set(failure, "no-capacity",
		                   "GPU %u (%s) has the slice %s, which is alone on it", gpu->index,
		                   gpu->uuid_text, told(grant, newcomer));
	if (new->alone)
		return failure_set(failure, "no-capacity",
		                   "GPU %u (%s) has the slice %s, and %s asks to be alone", gpu->index,
		                   gpu->uuid_text, told(grant, newcomer), new_label);
	if (grant->owner_uid != newcomer->owner_uid)
		return true;
	if (names(new, old_label))
		return failure_set(failure, "no-capacity",
		                   "GPU %u (%s) has the slice %s, which %s asks to be apart from",
		                   gpu->index, gpu->uuid_text, old_label, new_label);
	if (names(old, new_label))
		return failure_set(failure, "no-capacity",
		                   "GPU %u (%s) has the slice %s, which asks to be apart from %s",
		                   gpu->index, gpu->uuid_text, old_label, new_label);
	return true;
}

bool neighbours_check(struct arbiter *arbiter, const struct gpu *gpu,
                      const struct newcomer *newcomer, struct failure *failure)
{
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (grant != newcomer->grant && has_slice_of(grant, gpu) &&
		    !accept(gpu, newcomer, grant, failure))
			return false;
	return true;
}

const char *neighbours_invalid(const struct neighbours *neighbours)
{
	if (!memchr(neighbours->label, 0, sizeof(neighbours->label)))
		return "its label has no terminating zero";
	for (unsigned i = 0; i < NEIGHBOURS_MOST; i++)
		if (!memchr(neighbours->apart[i], 0, sizeof(neighbours->apart[i])))
			return "a label that it is apart from has no terminating zero";
	return neighbours->alone > 1 ? "it is neither alone nor not alone" : NULL;
}
