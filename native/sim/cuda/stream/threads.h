/* The driver's own threads in this process, and how threads wait for each other's progress.
 *
 * Precondition of every function here: the driver's lock is held. Functions that wait release it
 * while they wait.
 */
#ifndef SIM_THREADS_H
#define SIM_THREADS_H

#include <stdbool.h>
#include <stdint.h>

/* Starts a detached thread with all signals blocked. */
void threads_start(void *(*body)(void *));

/* Some operation ended or was dropped: wakes the threads in progress_wait. */
void progress_announce(void);
void progress_wait(void);

/* The worker thread (worker.c). */
bool worker_started(void);
void worker_start(void *(*body)(void *));
void worker_wake(void);              /* does nothing before worker_start */
void worker_sleep(uint64_t wake_ns); /* until worker_wake, at most until that time; SIM_NEVER */

#endif
