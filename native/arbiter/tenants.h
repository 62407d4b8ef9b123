/* Messages of tenants at the socket of their grant: HELLO, MEASURE and RING (aliquot/protocol.h).
 *
 * A message is untrusted until the kernel has identified its sender; its text is never read.
 */
#ifndef ARBITER_TENANTS_H
#define ARBITER_TENANTS_H

#include "loop.h"

/* The callback of a tenant connection's watch. */
void tenants_on_ready(struct watch *watch, uint32_t events);

#endif
