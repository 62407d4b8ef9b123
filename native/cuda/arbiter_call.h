/* The tenant's side of protocol.h: short calls to the arbiter, each on a connection of its own. */
#ifndef ALIQUOT_ARBITER_CALL_H
#define ALIQUOT_ARBITER_CALL_H

#include "aliquot/credit.h"

#include <stdbool.h>

struct arbiter_welcome {
	const struct aliquot_limits *limits; /* mapped read-only */
	struct aliquot_usage *usage;         /* mapped read-write */
	const struct aliquot_credit *credit; /* mapped read-only */
	struct aliquot_work_slice *work;     /* of each slice, mapped read-write */
	uint32_t slot;
};

enum arbiter_hello {
	ARBITER_WELCOMES,
	ARBITER_PARKED,  /* the grant is: its programs stand still, and this one asks again later */
	ARBITER_REFUSES, /* or cannot be reached, and why was said on stderr */
};

/* Join the grant. */
enum arbiter_hello arbiter_hello(struct arbiter_welcome *out);

/* Ask for a measurement and wait for it, so long at most; false: it did not come. */
bool arbiter_measure(int patience_ms, uint64_t for_context);

/* Say that this process is at work. Waits for nothing, and it is no matter if it cannot be said. */
void arbiter_ring(void);

#endif
