/* What goes wrong with compute shares, written to the log once.
 *
 * The main thread checks twice a second, together with the measurements: which process was late at
 * the end of its turn, which slice is exempt because of that, and on which GPUs gates fail.
 */
#ifndef ARBITER_FINDINGS_H
#define ARBITER_FINDINGS_H

#include "grant.h"

void findings_update(struct arbiter *arbiter);

/* Whether gates work for the slice: FAIL if they fail for one of its processes. *why: the CUDA error
 * code of that process. */
enum aliquot_gates findings_gates(const struct grant *grant, uint32_t slice, uint32_t *why);

#endif
