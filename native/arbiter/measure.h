/* Measures the memory that the driver takes by itself for a process.
 *
 * NVML says how much a process uses on a GPU; the ledger says how much it allocated. The difference
 * is the driver's: contexts, modules, local memory. The ledger is read before NVML is asked and when
 * the answer is there, and again if it has changed meanwhile. If the process allocates during the
 * measurement the difference looks too low, because a process reserves first and gives back last. It
 * looks too high only if memory is taken and given back between the two readings of the ledger. So a
 * rise counts as far as a second answer of NVML, asked for at once, shows it too, and a fall when two
 * measurements see it. A grant that is not active keeps its figures (grant_state.h).
 *
 * The size of a context is learned from the first one that is measured. NVML has seconds to answer for
 * that one, because it is slow on a loaded machine, and what is learned is charged for every later one.
 * Where NVML has no figure for a process (MPS, WSL, some vGPUs, or NVML that does not answer), each
 * context is charged an estimate (ledger_context_estimate) until one is measured after all.
 */
#ifndef ARBITER_MEASURE_H
#define ARBITER_MEASURE_H

#include "processes.h"

/* Begins to measure a process; `done` (or NULL) is called later: when its figures are up to date, when
 * NVML is silent, or when the process has left. False: there is nothing to measure now, and `done` is
 * not called. `is_new_context`: it reports that it has just made a context, for which it reserved
 * `for_context` bytes. */
bool measure_begin(struct measurement *measurement, struct process *process, bool is_new_context,
                   uint64_t for_context, void (*done)(struct measurement *measurement, bool left));

/* Starts the timer: every 500 ms, while a process is live or a grant has a cgroup, it asks for
 * snapshots of all GPUs, takes back what tenants added to files, measures all processes, drops those
 * that now run a program which uses no GPU, and updates credit and findings. */
void measure_start(struct arbiter *arbiter);
void measure_on_timer(struct timer *timer);

#endif
