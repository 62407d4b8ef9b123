/* A grant taken, open or parked (enum aliquot_hold): what its programs are frozen and thawed between.
 *
 * To freeze a program's processes the driver needs their gates open; then what they had of their GPUs
 * is on the host, and others may have the room. So a grant goes from taken to open to parked, and
 * back by open, where the driver gets back what it needs, to taken, where turns are taken again. Any
 * other step is as good.
 *
 * Guarantees. From parked to anything else all slices have room, memory and compute, as those of a
 * new grant, or nothing changes; every other step is done. A step that is no step is done. While a
 * grant is not taken its gates stand open and what the driver took for its processes stays as it was
 * measured last, since a frozen one is not in NVML's list.
 */
#ifndef ARBITER_HOLD_H
#define ARBITER_HOLD_H

#include "grants.h"

/* For root and the arbiter's own user: whose gates stand open is held to no share. */
bool hold_change(struct arbiter *arbiter, const struct control_request *request,
                 struct failure *failure);

/* One word in all slices again, where an arbiter was killed between two of them. */
void hold_agree(struct grant *grant);

#endif
