/* Room on GPUs that somebody waits for: grants there that are idle give theirs up for it (parking.h).
 *
 * `want` tells of a request that does not fit. It counts for 10 s; a caller that waits longer repeats it. It is in no
 * record: the next arbiter is told again. A want asks for nobody's memory once there is room for it, nor if all
 * that idle grants could give up is too little.
 */
#ifndef ARBITER_WANTS_H
#define ARBITER_WANTS_H

#include "control_parse.h"
#include "grant.h"

/* Notes the slices of a user's request. False: it names a GPU that this machine does not have, or the limits of
 * the user refuse it. */
bool wants_add(struct arbiter *arbiter, uint32_t uid, const struct control_request *request,
               struct failure *failure);

/* The grant was made: what was wanted of its GPUs may have been for it. A caller that still waits says so again. */
void wants_met(const struct grant *grant);

/* Whether somebody wants room on that GPU which there will only be if idle grants give up theirs. */
bool wants_room_on(struct arbiter *arbiter, const struct gpu *gpu);

/* The same for a parked grant that waits to return. */
bool wants_room_for(const struct grant *returning);

#endif
