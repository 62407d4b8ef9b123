/* What goes wrong with compute shares, written to the log once.
 *
 * The main thread checks twice a second, together with the measurements: which process was late at
 * the end of its turn, which slice is exempt because of that, and for which process gates fail.
 */
#ifndef ARBITER_FINDINGS_H
#define ARBITER_FINDINGS_H

#include "grant.h"

void findings_update(struct arbiter *arbiter);

#endif
