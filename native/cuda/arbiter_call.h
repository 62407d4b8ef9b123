/* The tenant's side of protocol.h: two short calls to the arbiter, each on a connection of its own. */
#ifndef ALIQUOT_ARBITER_CALL_H
#define ALIQUOT_ARBITER_CALL_H

#include "aliquot/layout.h"

#include <stdbool.h>

struct arbiter_welcome {
	const struct aliquot_limits *limits; /* mapped read-only */
	struct aliquot_usage *usage;         /* mapped read-write */
	uint32_t slot;
};

/* Join the grant; false: refused or unreachable, and why was said on stderr. */
bool arbiter_hello(struct arbiter_welcome *out);

/* Ask for a measurement and wait for it, so long at most; false: it did not come. */
bool arbiter_measure(int patience_ms, uint64_t for_context);

#endif
