/* Whether a GPU has enough free capacity: the checks that `make`, `resize` and `set-state` share.
 *
 * `except` is a grant whose own slice does not count: it asks to grow, or to leave the parked state.
 * NULL: the grant does not exist yet. Slices of parked grants do not count, only what a swappable grant leaves
 * on its GPU (residence.h); unless a program waits for a grant that was idle (parking.h). Each check returns false
 * and fills `failure` if the request does not fit.
 *
 * Slices that take turns with memory (rotation.h) may be granted more than the GPU has: overcommit.h says how
 * much more, capacity_check_present what is there now. A slice that is off its GPU counts as granted. So
 * a slice without turns is granted only what all others would leave if they were there.
 *
 * users.h has the limits of one user over all GPUs.
 */
#ifndef ARBITER_CAPACITY_H
#define ARBITER_CAPACITY_H

#include "control_parse.h"
#include "grant.h"

/* Whether the grant's slices are free for others: it is parked, and not for others' turn. */
bool capacity_is_away(const struct grant *grant);

/* What the grant has of that GPU. */
uint64_t capacity_bytes_on(const struct grant *grant, const struct gpu *gpu);

/* Bytes of that GPU in the limits of all grants that are not parked, and what parked ones have left there.
 * Also what its mover takes. */
uint64_t capacity_granted_bytes(struct arbiter *arbiter, const struct gpu *gpu);

/* What a new slice can have of that GPU. */
void capacity_free(struct arbiter *arbiter, const struct gpu *gpu, const struct grant *except,
                   uint64_t *bytes, uint32_t *percent);

/* What others than `except` have of the GPU now; of slices that are off it, what they have left there. */
uint64_t capacity_present_bytes(struct arbiter *arbiter, const struct gpu *gpu,
                                const struct grant *except);

/* Whether a slice that takes turns fits beside what is there now. */
bool capacity_check_present(struct arbiter *arbiter, const struct gpu *gpu, uint64_t bytes,
                            const struct grant *except, struct failure *failure);

/* Whether the slice fits the GPU if no other slice is on it. */
bool capacity_check_gpu(const struct gpu *gpu, uint64_t bytes, struct failure *failure);

/* Whether the limits of all slices together fit the GPU's memory. */
bool capacity_check_memory(struct arbiter *arbiter, const struct gpu *gpu, uint64_t bytes,
                           const struct grant *except, struct failure *failure);

/* Whether the shares of all slices without background priority come to at most 100 %. The failure
 * names the grants of that user, or all for root and the arbiter's user. */
bool capacity_check_compute(struct arbiter *arbiter, const struct gpu *gpu,
                            const struct control_slice *asked, uint32_t owner_uid,
                            const struct grant *except, struct failure *failure);

/* `hard` needs gates: refused if they do not work for a process that is in the slice now. What other
 * grants' processes say does not count. A process that joins a hard slice later and whose gates fail
 * cannot create a context (gate/lifecycle.c). */
bool capacity_check_policy(struct grant *grant, uint32_t slice, enum aliquot_policy policy,
                           struct failure *failure);

#endif
