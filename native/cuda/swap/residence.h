/* Whether the program's memory is on the GPU, and where calls wait while it is not.
 *
 * Calls that use device memory, or ask about it, are marked `resident` in hooks.txt: residence_enter before
 * the driver, residence_leave after. While memory leaves, is away or returns they wait here, asleep. Calls
 * that only ask how far the GPU is (cuStreamQuery, cuEventQuery) never wait: nothing is queued then.
 *
 * Whether a call may pass is a pure function of two words: the arbiter's `residence` (layout.h) says GPU,
 * and the memory is there. So a move that the arbiter calls off before it began lets all calls pass at once,
 * whatever the thread that moves is doing.
 *
 * Guarantee: from residence_is_quiet until the memory is back no call is inside, and the GPU has nothing to
 * do for this process.
 */
#ifndef ALIQUOT_RESIDENCE_H
#define ALIQUOT_RESIDENCE_H

#include <stdbool.h>

/* Start the thread that moves this process's memory, if the grant has swap=1. Precondition: the session is
 * open. */
void residence_start(void);

/* Wait until the memory is on the GPU, and be counted as inside. True: residence_leave must follow. */
bool residence_enter(void);
void residence_leave(void);

#endif
