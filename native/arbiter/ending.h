/* Dead processes, from the pidfd's word to the last byte given back.
 *
 * Each slice gets its bytes back when NVML says that its GPU lists the process no more. That may
 * take as long as a forked child lives that has the driver's files open: NVML is asked every few
 * milliseconds in the first 5 s, then every 500 ms. Only where NVML cannot tell, 5 s must do.
 */
#ifndef ARBITER_ENDING_H
#define ARBITER_ENDING_H

#include "grants.h"

/* The process is dead. */
void ending_begin(struct process *process);

void ending_on_timer(struct timer *timer);

#endif
