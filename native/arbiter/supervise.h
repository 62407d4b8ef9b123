/* The parent process: holds the lock, starts the arbiter, and restarts it when it dies or hangs.
 *
 * Guarantees.
 *   - A dead arbiter is replaced at once, unless ten died within ten seconds.
 *   - A stopped arbiter is killed, because every tenant would wait for it. So is one whose loop or credit
 *     thread makes no progress for three looks of the parent, two seconds apart. The parent counts its
 *     own looks, not the time: a machine that was suspended, or a parent that was stopped, harms nobody.
 *   - An arbiter that never listened is not started again.
 *   - However the arbiter ends, the parent opens all gates before it does anything else.
 *   - If the parent is killed, the arbiter ends and opens the gates. If both are killed at once, the
 *     guard opens them and becomes the parent (guard.h); the lock is never free meanwhile.
 *   - SIGTERM or SIGINT to the parent ends all three.
 *
 * All three may be killed at once, as systemd does with a service. Then gates stay closed until the next
 * arbiter starts; it finds everything in files.
 */
#ifndef ARBITER_SUPERVISE_H
#define ARBITER_SUPERVISE_H

#include "options.h"

/* Returns an exit code. The first arbiter that listens writes "ready" to `announce`; in the background
 * the parent writes there why none started. */
int supervise_run(const struct options *options, int announce);

#endif
