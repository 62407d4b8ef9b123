/* How much more memory than a GPU has its slices may be granted, if they take turns with it (rotation.h).
 *
 * A slice that takes turns is granted if
 *
 *   together   all limits of the GPU are within the factor of the arbiter (--overcommit) and of each slice that
 *              takes turns there (overcommit= of its request),
 *   alone      each slice that takes turns fits by itself, beside what does not move and what is fixed of each other one,
 *              1 GiB at least,
 *   host       the host has room for what must leave: twice what does not fit each GPU, because while two slices
 *              exchange the copies of both are there; beside the copies of suspended grants and what --spill has.
 *
 * src/aliquot/placement/core/overcommit.py is the same rule for those who choose a GPU.
 */
#ifndef ARBITER_OVERCOMMIT_H
#define ARBITER_OVERCOMMIT_H

#include "control_parse.h"
#include "grant.h"

/* What a slice that is off its GPU is expected to leave there at least: contexts. */
#define OVERCOMMIT_FIXED_BYTES (UINT64_C(1) << 30)

/* A slice that takes turns: `percent` of the GPU's memory may be granted while it is there; 0: as the arbiter says. */
struct overcommit_slice {
	const struct gpu *gpu;
	uint64_t bytes, percent;
};

/* Whether the slice may be granted. `except` is the grant whose slice it is; NULL: it does not exist yet. */
bool overcommit_check(struct arbiter *arbiter, const struct overcommit_slice *asked,
                      const struct grant *except, struct failure *failure);

/* Of the host's memory, what is kept for memory that leaves GPUs: set aside to turns, and copies of others. */
uint64_t overcommit_host_bytes(struct arbiter *arbiter, const struct overcommit_slice *asked,
                               const struct grant *except);

/* Whether the host has room for the copies of a grant whose memory shall leave for another reason than turns,
 * beside what is set aside for turns. */
bool overcommit_may_leave(struct arbiter *arbiter, const struct grant *grant,
                          struct failure *failure);

#endif
