/* Dead processes: from the pidfd's signal until the last byte is given back.
 *
 * A slice gets its bytes back when NVML no longer lists the process on its GPU. A forked child that
 * has the driver's files open can delay that. The arbiter asks NVML every few milliseconds in the
 * first 5 s, then every 500 ms, and believes snapshots that are newer than the death. If NVML cannot
 * tell, or is silent, the bytes are given back after 5 s.
 */
#ifndef ARBITER_CLEANUP_H
#define ARBITER_CLEANUP_H

#include "grant.h"

/* The process is dead: its state becomes `ending`. */
void cleanup_start(struct process *process);

/* There is a new snapshot of that GPU. */
void cleanup_on_snapshot(struct arbiter *arbiter, unsigned gpu);
void cleanup_on_timer(struct timer *timer);

#endif
