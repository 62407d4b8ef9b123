/* The parent: holds the lock, starts the arbiter, and starts it again when it dies.
 *
 * Guarantees: a dead arbiter is followed by another at once, unless ten died within ten seconds; one
 * that is stopped is killed, since everyone would wait for it; one that never listened is not tried
 * again; SIGTERM or SIGINT ends both; when the parent is killed the arbiter ends too, so that nothing
 * unwatched keeps the lock. However the arbiter ends, every gate that it had shut is open before
 * anything else happens (keeper.h); and the arbiter itself opens them when it ends because its
 * parent was killed.
 *
 * What is left is that both are killed in the same instant: then the gates stay as they were until
 * the programs behind them end. So the parent has a name of its own, which a kill by the arbiter's
 * name does not meet, and asks the kernel to spare it when memory runs out.
 */
#ifndef ARBITER_SUPERVISE_H
#define ARBITER_SUPERVISE_H

#include "options.h"

/* An exit code. `announce` gets "ready" from the first arbiter that listens; in the background also
 * why there is none. */
int supervise(const struct options *options, int announce);

#endif
