/* Which slices may be on one GPU: the rules of neighbours, which `make` and `set-state` check.
 *
 * A grant has a label, by default its name. It may ask to be apart from grants with some labels, or
 * alone. Labels are per user: a grant is apart only from grants of its own user, in both directions.
 * A grant that is alone shares its GPUs with no other grant of anybody. Parked grants do not count.
 */
#ifndef ARBITER_NEIGHBOURS_H
#define ARBITER_NEIGHBOURS_H

#include "aliquot/layout.h"
#include "failure.h"

#include <stdbool.h>

#define NEIGHBOURS_MOST 8u

struct arbiter;
struct gpu;
struct grant;

/* As a grant's record has it. All zero: nothing is asked for. */
struct neighbours {
	char label[ALIQUOT_NAME_SIZE]; /* empty: the grant's name */
	char apart[NEIGHBOURS_MOST]
			  [ALIQUOT_NAME_SIZE]; /* labels, the first ones; the others are empty */
	uint32_t alone;                /* 0 or 1 */
};

/* A grant that is to have a slice. */
struct newcomer {
	const char *name;
	uint32_t owner_uid;
	const struct neighbours *neighbours;
	const struct grant *grant; /* that itself does not count; NULL: it does not exist yet */
};

/* Whether the newcomer and all that have slices of this GPU accept each other; false and `failure` if
 * not. */
bool neighbours_check(struct arbiter *arbiter, const struct gpu *gpu,
                      const struct newcomer *newcomer, struct failure *failure);

/* What is wrong with a record's part, or NULL. */
const char *neighbours_invalid(const struct neighbours *neighbours);

#endif
