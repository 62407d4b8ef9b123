/* A grant's hold from the words of its slices: every three words, known and unknown. */
#include "aliquot/layout.h"

#include "../check.h"

#include <stdbool.h>
#include <string.h>

static struct aliquot_limits limits;

static enum aliquot_hold of(const uint32_t *words, uint32_t count)
{
	memset(&limits, 0, sizeof(limits));
	limits.slice_count = count;
	for (uint32_t i = 0; i < count; i++)
		atomic_store(&limits.slices[i].hold, words[i]);
	return aliquot_limits_hold(&limits);
}

int main(void)
{
	static const uint32_t known[] = {ALIQUOT_HOLD_TAKEN, ALIQUOT_HOLD_OPEN, ALIQUOT_HOLD_PARKED, 3,
	                                 UINT32_MAX};
	CHECK(of((uint32_t[]){0}, 1) == ALIQUOT_HOLD_TAKEN); /* as older arbiters leave it */
	CHECK(of(NULL, 0) == ALIQUOT_HOLD_TAKEN);            /* a page that was wiped */
	for (unsigned drawn = 0; drawn < 125; drawn++) {
		uint32_t words[] = {known[drawn % 5], known[drawn / 5 % 5], known[drawn / 25]};
		bool is_known = true, is_parked = true, is_taken = false;
		for (unsigned i = 0; i < 3; i++) {
			is_known &= words[i] <= ALIQUOT_HOLD_PARKED;
			is_parked &= words[i] == ALIQUOT_HOLD_PARKED;
			is_taken |= words[i] == ALIQUOT_HOLD_TAKEN;
		}
		enum aliquot_hold expected = is_parked ? ALIQUOT_HOLD_PARKED : ALIQUOT_HOLD_OPEN;
		if (!is_known || is_taken)
			expected = ALIQUOT_HOLD_TAKEN;
		CHECK(of(words, 3) == expected);
	}
	return 0;
}
