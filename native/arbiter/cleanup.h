/* Dead processes: from the pidfd's signal until the last byte is given back.
 *
 * A slice gets its bytes back when NVML no longer lists the process on its GPU. A forked child that
 * has the driver's files open can delay that. The arbiter asks NVML every few milliseconds in the
 * first 5 s, then every 500 ms. If NVML cannot tell, the bytes are given back after 5 s.
 */
#ifndef ARBITER_CLEANUP_H
#define ARBITER_CLEANUP_H

#include "grant.h"

/* The process is dead: its state becomes `ending`. */
void cleanup_start(struct process *process);

void cleanup_on_timer(struct timer *timer);

#endif
