/* Measures the memory that the driver takes by itself for a process.
 *
 * NVML says how much a process uses on a GPU; the ledger says how much it allocated. The difference
 * is the driver's: contexts, modules, local memory. If the process allocates during the measurement
 * the difference looks too low, never too high, because a process reserves first and gives back
 * last. So a rise is accepted at once, and a fall when it is seen twice. A grant that is not active
 * keeps its figures (grant_state.h).
 */
#ifndef ARBITER_MEASURE_H
#define ARBITER_MEASURE_H

#include "grant.h"

/* Measures one process now. `new_context`: it reports that it has just made a context, for which it
 * reserved `for_context` bytes. */
void measure_process(struct process *process, bool new_context, uint64_t for_context);

/* Starts the timer: every 500 ms, while a process is live, it measures all processes, drops those that
 * now run a program which uses no GPU, and updates credit and findings. */
void measure_start(struct arbiter *arbiter);
void measure_on_timer(struct timer *timer);

void measure_close(void);

#endif
