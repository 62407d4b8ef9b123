/* The one engine of each GPU, shared by all processes of the simulated machine.
 *
 * The model. A kernel has the whole GPU for its duration. A process has at most one kernel at the
 * engine; kernels of different processes go in the order they came. Time is kept on paper: a kernel
 * starts when it was ready and the one before it ended, and whoever looks later writes down what
 * has ended by then. So nothing is lost between two kernels because a thread woke up late, and
 * shares of GPU time can be counted to the nanosecond.
 *
 * A dead process's kernel leaves the engine when the next one looks.
 */
#ifndef SIM_ENGINE_H
#define SIM_ENGINE_H

#include "machine.h"

uint64_t engine_now(void); /* CLOCK_MONOTONIC in ns */

/* Queues this process's kernel. Precondition: its last one was taken with engine_poll. */
void engine_submit(struct machine *m, uint32_t gpu, uint64_t ready_ns, uint64_t duration_ns);

/* Whether this process's kernel has ended: true, and *when is its end; else *when is the time to
 * look again. */
bool engine_poll(struct machine *m, uint32_t gpu, uint64_t *when);

/* For machine.c, with the lock held: a dead process leaves; a state left half-written is put
 * right. */
void engine_forget(struct machine *m, uint32_t slot);
void engine_mend(struct machine *m);

/* Writes down what has ended. Precondition: the lock is held. */
void engine_advance(struct machine *m, uint32_t gpu);

/* Nanoseconds of the last `window` (at most 1.5 s) that a history was busy. */
uint64_t engine_busy(const struct sim_history *history, uint64_t now, uint64_t window);

#endif
