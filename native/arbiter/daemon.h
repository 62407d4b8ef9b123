/* Going into the background, with the starting command waiting until the arbiter listens. */
#ifndef ARBITER_DAEMON_H
#define ARBITER_DAEMON_H

#include "options.h"

/* The exit code of the starting command, or in the background that of the parent. */
int daemon_start(const struct options *options);

#endif
