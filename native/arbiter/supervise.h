/* The parent: holds the lock, starts the arbiter, and starts it again when it dies.
 *
 * Guarantees: a dead arbiter is followed by another at once, unless ten died within ten seconds; an
 * arbiter that never listened is not tried again; SIGTERM or SIGINT ends both; when the parent is
 * killed the arbiter ends too, so that nothing unwatched keeps the lock.
 */
#ifndef ARBITER_SUPERVISE_H
#define ARBITER_SUPERVISE_H

#include "options.h"

/* An exit code. `announce` gets "ready" from the first arbiter that listens; in the background also
 * why there is none. */
int supervise(const struct options *options, int announce);

#endif
