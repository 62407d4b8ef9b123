/* Where calls wait that a frozen process must not make.
 *
 * While the driver has moved a process's memory to the host, most of its calls wait by themselves.
 * Calls that wait for the GPU, or ask whether it is done, do not: they read memory that is not
 * there, and the program crashes (seen with driver 580). So these calls wait here while the grant
 * is not active, that is, from before its memory goes until after it is back (aliquot/layout.h:
 * hold).
 *
 * Calls past the barrier are counted in a page that the arbiter reads. The pool or agent that freezes
 * a process waits until the count is 0: those calls return, since no new work begins, and no other call
 * follows them. Guarantee: if the grant is not active and the count is 0, no such call is in the
 * driver, and none will be.
 *
 * In a grant with swap=1 nothing waits here, and the driver must not freeze its processes: their memory is
 * moved by us (aliquot/move.h), the contexts stay, and these calls read nothing that is gone.
 */
#ifndef ALIQUOT_FREEZE_BARRIER_H
#define ALIQUOT_FREEZE_BARRIER_H

#include <stdbool.h>

/* Wait until the grant is active, and be counted. True: freeze_barrier_leave must follow. */
bool freeze_barrier_enter(void);
void freeze_barrier_leave(void);

#endif
