/* Whether a GPU has room for what is asked of it: what `make`, `resize` and `hold` have in common.
 *
 * All figures are of the other grants: `but` is the grant that asks for more of what it has, or for
 * what it has parked; NULL one that is to be made. Parked grants have nothing.
 */
#ifndef ARBITER_ROOM_H
#define ARBITER_ROOM_H

#include "grants.h"

/* A slice of that size could be, with no other on the GPU. */
bool room_on_gpu(const struct gpu *gpu, uint64_t bytes, struct failure *failure);

/* The limits of all slices fit the GPU's memory. */
bool room_for_memory(struct arbiter *arbiter, const struct gpu *gpu, uint64_t bytes,
                     const struct grant *but, struct failure *failure);

/* The shares of all slices but those in the background come to 100 % at most. */
bool room_for_compute(struct arbiter *arbiter, const struct gpu *gpu,
                      const struct control_slice *asked, const struct grant *but,
                      struct failure *failure);

/* `hard` needs gates; where the last process that tried them found none it is refused. */
bool room_for_policy(struct arbiter *arbiter, const struct gpu *gpu, enum aliquot_policy policy,
                     struct failure *failure);

#endif
