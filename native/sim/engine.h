/* The one engine of each GPU, shared by all processes of the simulated machine.
 *
 * The model. A kernel has the whole GPU while it runs. Processes take turns as on a card: one runs
 * until it has no kernel left, or until its time slice is over and another one has a kernel ready.
 * Then the next in order has the engine, and what is left of a kernel that was cut off goes on in
 * its process's next slice.
 *
 * Within a process kernels go one at a time, in the order that cuda_kernels.c gives them to the
 * engine. A kernel that spins (it waits for a word in memory, and its end is not known) takes GPU
 * time, but only while its process has nothing else to run: on a card there is room beside it. So
 * it never keeps another stream's kernel of its own process from running.
 *
 * On paper. Nobody drives the engine: whoever looks writes down what has happened by then. A kernel
 * starts when it was ready and the engine was free, not when a thread woke up to say so. A process
 * whose kernel ended and that has `more` keeps its slice and its turn until it has brought the next
 * one or said that it has none: the paper stands still there, for at most ENGINE_HOLD_NS of the
 * clock. So a thread that wakes up late slows the GPU down, but loses none of its share.
 *
 * Guarantees: a kernel's stretches add up to exactly its duration; no two of a GPU overlap; a GPU's
 * busy_ns is the sum of its processes'. A dead process's kernel leaves when the next one looks.
 */
#ifndef SIM_ENGINE_H
#define SIM_ENGINE_H

#include "machine.h"

#define ENGINE_SLICE_NS 2000000ull
#define ENGINE_HOLD_NS 20000000ull

/* Gives the engine this process's next kernel; `duration_ns` SIM_NEVER: one that spins. `more`: the
 * process has another one for when it ends. Precondition: its last one has ended (engine_poll) or
 * spins: then it steps aside. */
void engine_submit(struct machine *m, uint32_t gpu, uint64_t ready_ns, uint64_t duration_ns,
                   bool more);

/* Whether this process's kernel has ended: true, and *when is its end; else it does not end before
 * *when. */
bool engine_poll(struct machine *m, uint32_t gpu, uint64_t *when);

/* What this process's kernel spun for is there: it ends as soon as it has the engine. */
void engine_release(struct machine *m, uint32_t gpu);

/* This process has nothing for the engine now; a kernel of it that is there is dropped. */
void engine_leave(struct machine *m, uint32_t gpu);

/* For machine.c, with the lock held: a dead process leaves; a state left half-written is put
 * right. */
void engine_forget(struct machine *m, uint32_t slot);
void engine_mend(struct machine *m);

/* Writes down everything up to now. Precondition: the lock is held. */
void engine_advance(struct machine *m, uint32_t gpu);

/* Nanoseconds of the last `window` (at most 1.5 s) that a history was busy. */
uint64_t engine_busy(const struct sim_history *history, uint64_t now, uint64_t window);

#endif
