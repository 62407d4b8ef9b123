/* What the driver takes by itself, found in NVML's figure for each process.
 *
 * NVML says what a process has on a GPU; the ledger says what it was given. The difference is the
 * driver's: contexts, modules, local memory. A process that allocates meanwhile makes it look low
 * (it reserves first, and gives back last), never high; so a rise is believed at once and a fall
 * when it is seen twice. A grant that is not taken keeps the figures it had (hold.h).
 */
#ifndef ARBITER_MEASURE_H
#define ARBITER_MEASURE_H

#include "grants.h"

/* Reads one process now. `young`: at its own word that it has just made a context. */
void measure_process(struct process *process, bool young, uint64_t for_context);

/* Measures all every 500 ms, for as long as a process lives, lets go of those that have become
 * programs which use no GPU, and has credit and findings look too. */
void measure_start(struct arbiter *arbiter);
void measure_on_timer(struct timer *timer);

void measure_close(void);

#endif
