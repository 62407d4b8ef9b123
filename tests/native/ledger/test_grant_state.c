/* A grant's state from the states of its slices: all combinations of three, known and unknown. */
#include "aliquot/layout.h"

#include "../check.h"

#include <stdbool.h>
#include <string.h>

static struct aliquot_limits limits;

static enum aliquot_grant_state state_of(const uint32_t *words, uint32_t count)
{
	memset(&limits, 0, sizeof(limits));
	limits.slice_count = count;
	for (uint32_t i = 0; i < count; i++)
		atomic_store(&limits.slices[i].grant_state, words[i]);
	return aliquot_limits_grant_state(&limits);
}

int main(void)
{
	static const uint32_t known[] = {ALIQUOT_GRANT_ACTIVE, ALIQUOT_GRANT_SWITCHING,
	                                 ALIQUOT_GRANT_PARKED, 3, UINT32_MAX};
	CHECK(state_of((uint32_t[]){0}, 1) == ALIQUOT_GRANT_ACTIVE); /* as older arbiters wrote it */
	CHECK(state_of(NULL, 0) == ALIQUOT_GRANT_ACTIVE);            /* a page that was wiped */
	for (unsigned drawn = 0; drawn < 125; drawn++) {
		uint32_t words[] = {known[drawn % 5], known[drawn / 5 % 5], known[drawn / 25]};
		bool is_known = true, is_parked = true, is_active = false;
		for (unsigned i = 0; i < 3; i++) {
			is_known &= words[i] <= ALIQUOT_GRANT_PARKED;
			is_parked &= words[i] == ALIQUOT_GRANT_PARKED;
			is_active |= words[i] == ALIQUOT_GRANT_ACTIVE;
		}
		enum aliquot_grant_state expected = is_parked ? ALIQUOT_GRANT_PARKED
		                                              : ALIQUOT_GRANT_SWITCHING;
		if (!is_known || is_active)
			expected = ALIQUOT_GRANT_ACTIVE;
		CHECK(state_of(words, 3) == expected);
	}
	return 0;
}
