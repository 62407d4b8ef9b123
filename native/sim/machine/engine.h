/* Each GPU's engine as one process uses it: one kernel at a time.
 *
 * The rules of the engine are in schedule.h. A process submits its kernels one at a time, in the order
 * that cuda/stream/kernels.c chooses. A kernel that spins (it waits for a value in memory, and its end
 * is unknown) takes GPU time, but only while its process has nothing else to run: on a real GPU other
 * kernels fit next to it. So it never blocks a kernel of another stream of its own process.
 *
 * The kernel of a process that died leaves the engine when the next process looks.
 */
#ifndef SIM_ENGINE_H
#define SIM_ENGINE_H

#include "machine.h"

/* Submits this process's next kernel; `duration_ns` SIM_NEVER: it spins. `more`: the process will
 * submit another one when this one ends. Precondition: the previous kernel has ended (engine_poll), or
 * spins; then the new one replaces it. */
void engine_submit(struct machine *m, uint32_t gpu, uint64_t ready_ns, uint64_t duration_ns,
                   bool more);

/* Whether this process's kernel has ended. If so *when is its end; if not, it does not end before
 * *when. */
bool engine_poll(struct machine *m, uint32_t gpu, uint64_t *when);

/* The value that this process's kernel spins for is there: it ends as soon as it has the engine. */
void engine_release(struct machine *m, uint32_t gpu);

/* This process has no kernel for the engine; drops the one it has there. */
void engine_leave(struct machine *m, uint32_t gpu);

/* Advances the schedule to now. Precondition: the lock of the machine's file is held. */
void engine_advance(struct machine *m, uint32_t gpu);

#endif
