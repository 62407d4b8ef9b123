/* The control socket: one request line, one reply line of JSON, then the connection is closed. */
#ifndef ARBITER_CONTROL_H
#define ARBITER_CONTROL_H

#include "arbiter.h"

bool control_listen(struct arbiter *arbiter, struct failure *failure);
void control_close(struct arbiter *arbiter);

#endif
