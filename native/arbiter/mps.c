#include "mps.h"

#include "arbiter.h"
#include "control_parse.h"
#include "grant.h"

#include <stdlib.h>
#include <string.h>

/* Whether a list of UUIDs separated by commas has the wanted one. *valid: all up to there are UUIDs.
 * NULL is in no list. */
static bool find_uuid(const char *list, const uint8_t *wanted, bool *valid)
{
	*valid = true;
	for (const char *at = list;; at++) {
		size_t length = strcspn(at, ",");
		uint8_t uuid[16];
		*valid = aliquot_uuid_parse(at, length, uuid);
		if (!*valid)
			return false;
		if (wanted && !memcmp(uuid, wanted, sizeof(uuid)))
			return true;
		at += length;
		if (!*at)
			return false;
	}
}

bool mps_is_policy(const char *text)
{
	bool valid;
	if (!strcmp(text, "all") || !strcmp(text, "none"))
		return true;
	find_uuid(text, NULL, &valid);
	return valid;
}

bool mps_is_allowed(const char *policy, const uint8_t uuid[16])
{
	bool valid;
	if (!policy || !strcmp(policy, "all"))
		return true;
	return strcmp(policy, "none") && find_uuid(policy, uuid, &valid);
}

bool mps_overlaps(void)
{
	static int known = -1; /* the answer is always the same */
	if (known < 0) {
		const char *asked = getenv("ALIQUOT_MPS_OVERLAP");
		known = asked && !strcmp(asked, "1");
	}
	return known;
}

bool mps_check(const struct arbiter *arbiter, const struct gpu *gpu,
               const struct control_request *request, struct failure *failure)
{
	if (!request->mps || mps_is_allowed(arbiter->mps, gpu->uuid))
		return true;
	return failure_set(failure, "no-mps", "GPU %u (%s) allows no MPS server here", gpu->index,
	                   gpu->uuid_text);
}

bool mps_may_leave(const struct grant *grant, struct failure *failure)
{
	if (!grant->record || !grant->record->mps)
		return true;
	return failure_set(failure, "mps-stays",
	                   "the programs of grant %s are clients of an MPS server, which the driver "
	                   "cannot freeze",
	                   grant_name_for(grant, failure->reader));
}

void mps_write(const struct grant *grant, struct json *out)
{
	bool mps = grant->record && grant->record->mps;
	json_string(out, "isolation", mps ? "mps" : "soft");
}
