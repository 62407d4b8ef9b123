/* What tenants say at their grant's socket: HELLO, MEASURE and RING (aliquot/protocol.h).
 *
 * A message is data from a stranger until the kernel has said who sent it; its text is never read.
 */
#ifndef ARBITER_TENANTS_H
#define ARBITER_TENANTS_H

#include "loop.h"

/* For a connection's watch. */
void tenants_on_ready(struct watch *watch, uint32_t events);

#endif
