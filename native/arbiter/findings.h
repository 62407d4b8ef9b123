/* What the arbiter finds out about its tenants' work, and tells the log once.
 *
 * Looked for twice a second with the measurements, by the main thread: who was late at the end of
 * its turn, whose gates were left open for that, and on which GPUs processes found that there can
 * be no gates.
 */
#ifndef ARBITER_FINDINGS_H
#define ARBITER_FINDINGS_H

#include "grants.h"

void findings_look(struct arbiter *arbiter);

/* What the slice's processes found: gates that fail with one of them fail. *why: what its driver
 * said. */
enum aliquot_gates findings_gates(const struct grant *grant, uint32_t slice, uint32_t *why);

#endif
