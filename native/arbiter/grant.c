#include "grant.h"

#include "log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum aliquot_life grant_life(const struct grant *grant)
{
	return grant->limits ? (enum aliquot_life)atomic_load(&grant->limits->life) : ALIQUOT_OWNED;
}

bool grant_is_for_container(const struct grant *grant)
{
	return grant_life(grant) != ALIQUOT_OWNED && grant->owner_uid == geteuid();
}

enum aliquot_grant_state grant_state(const struct grant *grant)
{
	return grant->limits ? aliquot_limits_grant_state(grant->limits) : ALIQUOT_GRANT_ACTIVE;
}

void grant_break(struct grant *grant, const char *part, const char *why)
{
	grant->usage = NULL;
	if (*grant->broken)
		return;
	size_t named = strlen(part);
	bool repeats = !strncmp(why, part, named) && why[named] == ':';
	snprintf(grant->broken, sizeof(grant->broken), "%s%s%s", repeats ? "" : part,
	         repeats ? "" : ": ", why);
	log_event("grant %s is broken: %s", grant->name, grant->broken);
}

/* Readers take each word whole. */
static void copy_words(void *to, const void *from, size_t size)
{
	_Atomic uint64_t *written = to;
	const _Atomic uint64_t *read = from;
	for (size_t i = 0; i < size / sizeof(*read); i++)
		atomic_store_explicit(&written[i], atomic_load_explicit(&read[i], memory_order_relaxed),
		                      memory_order_release);
}

static void publish_slots(struct grant *grant, uint32_t first, uint32_t end)
{
	_Static_assert(sizeof(struct aliquot_process) % sizeof(uint64_t) == 0, "whole words");
	if (grant->view)
		copy_words(&grant->view->processes[first], &grant->limits->processes[first],
		           (end - first) * sizeof(struct aliquot_process));
}

void grant_publish(struct grant *grant, uint32_t slot)
{
	_Static_assert(offsetof(struct aliquot_limits, processes) % sizeof(uint64_t) == 0,
	               "whole words");
	if (grant->view)
		copy_words(grant->view, grant->limits, offsetof(struct aliquot_limits, processes));
	if (slot != GRANT_NO_SLOT)
		publish_slots(grant, slot, slot + 1);
}

void grant_publish_all(struct grant *grant)
{
	publish_slots(grant, 0, ALIQUOT_MAX_PROCESSES);
	grant_publish(grant, GRANT_NO_SLOT);
}

bool grant_check(struct grant *grant)
{
	if (*grant->broken)
		return false;
	if (atomic_load(&grant->view_mapping.truncated))
		grant_break(grant, "limits", "truncated while in use");
	else if (grant->usage_mapping.truncated)
		grant_break(grant, "usage", "truncated while in use");
	else {
		const char *why = aliquot_usage_check(grant->usage, grant->usage_mapping.size);
		if (grant->usage_mapping.truncated)
			why = "truncated while in use";
		if (why)
			grant_break(grant, "usage", why);
	}
	return !*grant->broken;
}

bool grant_is_off(const struct grant *grant)
{
	return grant->record && grant->record->turn.is_others &&
	       grant_state(grant) == ALIQUOT_GRANT_PARKED;
}

bool grant_keeps_room(const struct grant *grant)
{
	return grant->parking.wanted_at && !grant->arbiter->returns;
}

struct grant *grant_find(struct arbiter *arbiter, uint32_t owner_uid, const char *name)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (grant->owner_uid == owner_uid && !strcmp(grant_plain_name(grant), name))
			return grant;
	return NULL;
}

void grant_set_name(struct grant *grant, uint32_t owner_uid, const char *name)
{
	grant->owner_uid = owner_uid;
	if (owner_uid == geteuid())
		snprintf(grant->name, sizeof(grant->name), "%s", name);
	else
		snprintf(grant->name, sizeof(grant->name), "%u:%s", owner_uid, name);
}

const char *grant_plain_name(const struct grant *grant)
{
	const char *colon = strchr(grant->name, ':'); /* no plain name has one */
	return colon ? colon + 1 : grant->name;
}

const char *grant_name_for(const struct grant *grant, uint32_t uid)
{
	return uid == grant->owner_uid ? grant_plain_name(grant) : grant->name;
}

uint32_t grant_directory_owner(const char *directory)
{
	return strchr(directory, ':') ? (uint32_t)strtoul(directory, NULL, 10) : geteuid();
}

void grant_path(const struct grant *grant, char out[GRANT_PATH_SIZE])
{
	snprintf(out, GRANT_PATH_SIZE, "%s/%s/%s", grant->arbiter->state->path,
	         state_folder_name(grant->folder), grant->directory);
}
