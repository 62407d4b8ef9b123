/* The tenant's side of protocol.h: short calls to the arbiter, each on its own connection.
 *
 * arbiter_measure, arbiter_mover and arbiter_ring are no cancellation points: they are called while a thread of the
 * program holds memory of the slice that others could not use if it ended there. */
#ifndef ALIQUOT_ARBITER_CALL_H
#define ALIQUOT_ARBITER_CALL_H

#include "aliquot/credit.h"

#include <stdbool.h>

struct arbiter_welcome {
	const struct aliquot_limits *limits; /* mapped read-only */
	struct aliquot_usage *usage;         /* mapped read-write */
	const struct aliquot_credit *credit; /* mapped read-only */
	struct aliquot_work_slice *work;     /* one for each slice, mapped read-write */
	uint32_t slot;
};

enum arbiter_hello {
	ARBITER_WELCOMES,
	ARBITER_PARKED,  /* the grant is parked: ask again later */
	ARBITER_REFUSES, /* or does not answer; stderr has the reason */
};

/* Join the grant. */
enum arbiter_hello arbiter_hello(struct arbiter_welcome *out);

/* Ask for a measurement, and wait for it for `patience_ms` at most; false: it did not come. If a
 * context was just created, `held_for_context` is what is charged for it; else 0. */
bool arbiter_measure(int patience_ms, uint64_t held_for_context);

/* A connection to the process that copies this program's memory to the host and back (move.h); -1: there is
 * none now, or it did not come within `patience_ms`. */
int arbiter_mover(int patience_ms);

/* Tell the arbiter that this process is at work. Waits for nothing; a failure does not matter. */
void arbiter_ring(void);

#endif
