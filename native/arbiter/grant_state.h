/* Switching a grant between active, switching and parked (enum aliquot_grant_state).
 *
 * To freeze the processes of a program the driver needs their gates open. After that their memory is
 * on the host, and other grants may use the GPU. So a grant goes from active to switching to parked.
 * On the way back it is switching while the driver restores its memory, then active. Any other step
 * is allowed too.
 *
 * Guarantees. To leave the parked state all slices need free memory and compute, as the slices of a
 * new grant do, beyond what a swappable grant has left on its GPU; otherwise nothing changes. Every other step succeeds, also one to the present state.
 * While a grant is not active its gates are open, and driver_bytes stay as they were last measured,
 * because NVML does not list a frozen process.
 */
#ifndef ARBITER_GRANT_STATE_H
#define ARBITER_GRANT_STATE_H

#include "control_parse.h"
#include "grant.h"

/* The caller must be root or the arbiter's user: while gates are open no compute limit holds. */
bool grant_state_set(struct grant *grant, enum aliquot_grant_state state, struct failure *failure);

/* Writes one state to all slices again, after an arbiter was killed between two of them. */
void grant_state_repair(struct grant *grant);

/* Whether a parked grant that takes turns with memory (rotation.h) may have its slice again, when its turn comes. */
bool grant_state_may_wait(const struct grant *grant, struct failure *failure);

#endif
