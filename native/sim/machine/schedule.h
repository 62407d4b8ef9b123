/* The schedule of each GPU's engine: pure functions on the machine's file.
 *
 * The model. A kernel has the whole GPU while it runs. Processes take turns as on a real GPU: a process
 * runs until it has no kernel left, or until its time slice is over and another process has a kernel
 * ready. Then the next process in order gets the engine. A kernel that was interrupted continues in
 * its process's next slice.
 *
 * Nothing drives the engine. The first thread that looks at the schedule advances it: it writes down what has
 * happened up to now. A kernel starts when it was ready and the engine was free, not when a thread
 * woke up to say so. If a process's kernel ended and the process announced `more`, it keeps its slice
 * and its turn until it has submitted the next kernel or said that it has none. The schedule stops
 * there, for at most SCHEDULE_WAIT_NS. So a thread that wakes up late slows the GPU down, but its
 * process loses none of its share.
 *
 * Guarantees: the stretches of a kernel add up to exactly its duration. No two kernels of a GPU
 * overlap. A GPU's busy_ns is the sum over its processes.
 *
 * Precondition of every function that changes the file: its lock is held.
 */
#ifndef SIM_SCHEDULE_H
#define SIM_SCHEDULE_H

#include "machine.h"

#define SCHEDULE_SLICE_NS 2000000ull
#define SCHEDULE_WAIT_NS 20000000ull

/* Advances a GPU's schedule to `now`. */
void schedule_advance(struct sim_map *map, uint32_t gpu, uint64_t now);

/* The same; if the process of `slot` is running, its busy time includes all time up to `now`. */
void schedule_count(struct sim_map *map, uint32_t gpu, uint32_t slot, uint64_t now);

/* Drops the kernel of the process of `slot`; it has none from now on. */
void schedule_leave(struct sim_map *map, uint32_t gpu, uint32_t slot, uint64_t now);

/* Takes the engine from the process that has it. */
void schedule_step_down(struct sim_gpu *gpu);

/* Makes the file consistent after a process died in the middle of a change. */
void schedule_repair(struct sim_map *map);

/* Whether the engine waits for the next kernel of the process that has it. */
bool schedule_is_waiting(const struct sim_gpu *gpu);

/* When the first process other than `except` has a kernel ready; SIM_NEVER: no process has one. */
uint64_t schedule_first_ready(const struct sim_map *map, const struct sim_gpu *gpu, uint32_t except,
                              uint64_t now);

/* When the running kernel ends or its slice is over; SIM_NEVER: unknown. */
uint64_t schedule_next_change(const struct sim_map *map, const struct sim_gpu *gpu, uint64_t now);

/* Nanoseconds of the last `window` (at most 1.5 s) in which a history was busy. */
uint64_t schedule_busy(const struct sim_history *history, uint64_t now, uint64_t window);

#endif
