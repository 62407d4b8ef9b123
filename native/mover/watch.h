/* Whether this mover hangs.
 *
 * A thread that works reports each step that it has done. The main thread looks twice a second whether all
 * that work have, and counts up `beats` in the arena (aliquot/arena.h), which the arbiter's parent watches.
 * So a hang is seen whichever thread hangs, and wherever: the main thread ends the process if another one
 * hangs, and the parent ends it if the main thread does.
 *
 * Looks are counted, not time: a machine that was suspended, or a process that was stopped and continued,
 * has not hung. A step is never longer than it takes to copy GPU_STEP (gpu.h) four times and once more.
 */
#ifndef MOVER_WATCH_H
#define MOVER_WATCH_H

#include "aliquot/arena.h"

#define WATCH_LOOK_MS 500

/* Precondition of all others. `seconds` without a step are a hang. */
void watch_open(struct aliquot_arena *page, unsigned seconds);

/* The calling thread is watched from now on, or no longer. */
void watch_enter(void);
void watch_leave(void);

/* It works from now on, or waits for somebody else, which may take for ever. */
void watch_work(void);
void watch_rest(void);

/* A step is done. Any thread may call this, whether it is watched or not. */
void watch_step(void);

/* For the main thread, every WATCH_LOOK_MS: ends the process if a thread hangs. */
void watch_look(void);

#endif
