/* The guard: a process that sleeps until the parent dies, for the case that the arbiter dies with it.
 *
 * It does nothing else, so nothing that kills the others by accident reaches it. When the parent dies it
 * opens all gates at once, and ends an arbiter that is left. Then it takes the parent's place
 * (supervise.h), except in the foreground, where the service manager or the user that started the
 * arbiter starts the next one.
 */
#ifndef ARBITER_GUARD_H
#define ARBITER_GUARD_H

#include "state.h"
#include "supervision.h"

/* In the new process: returns when its parent, of that pid, has died, all gates are open and no arbiter
 * is left. */
void guard_wait(pid_t parent, const struct state *state, struct supervision *supervision);

#endif
