/* Messages of tenants at the socket of their grant: HELLO, MEASURE, RING and MOVER (aliquot/protocol.h).
 *
 * A message is untrusted until the kernel has identified its sender; its text is never read.
 *
 * The owner of a grant, root and the arbiter's user may join it. The grant of a container may be joined by
 * every process that has mounts of its own, as those of a container have. If the arbiter was told a
 * grant's cgroup (unjoined.h), only processes in that may join, and of a container's grant all of them.
 * Only the container's mounts have the socket, because nobody passes through the
 * host's directory of kept grants (state.h). So the arbiter refuses another user of the host that gets
 * hold of the socket all the same, through /proc or a descriptor.
 */
#ifndef ARBITER_TENANTS_H
#define ARBITER_TENANTS_H

#include "loop.h"

/* The callback of a tenant connection's watch. */
void tenants_on_ready(struct watch *watch, uint32_t events);

/* The callback of the timer `ring`. */
void tenants_on_ring_timer(struct timer *timer);

#endif
