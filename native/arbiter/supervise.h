/* The parent process: holds the lock, starts the arbiter, and restarts it when it dies.
 *
 * Guarantees.
 *   - A dead arbiter is replaced at once, unless ten died within ten seconds.
 *   - A stopped arbiter is killed, because every tenant would wait for it.
 *   - An arbiter that never listened is not started again.
 *   - SIGTERM or SIGINT ends both. If the parent is killed the arbiter ends too, so the lock is free.
 *   - However the arbiter ends, the parent opens all gates before it does anything else
 *     (page_store.h). If the parent is killed, the arbiter opens them before it ends.
 *
 * One case remains: both are killed in the same instant. Then gates stay closed until the programs
 * behind them end. So the parent has its own process name, which a kill by the arbiter's name does
 * not match, and asks the kernel to spare it when memory runs out.
 */
#ifndef ARBITER_SUPERVISE_H
#define ARBITER_SUPERVISE_H

#include "options.h"

/* Returns an exit code. The first arbiter that listens writes "ready" to `announce`; in the background
 * the parent writes there why none started. */
int supervise_run(const struct options *options, int announce);

#endif
