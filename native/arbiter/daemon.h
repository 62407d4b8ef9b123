/* Starting in the background: the starting command waits until the arbiter listens. */
#ifndef ARBITER_DAEMON_H
#define ARBITER_DAEMON_H

#include "options.h"

/* Returns the exit code of the starting command; in the background process, that of the parent. */
int daemon_start(const struct options *options);

#endif
