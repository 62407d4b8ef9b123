/* Where calls stop that a frozen program must not make.
 *
 * While the driver has a process's memory with the host, most of its calls wait. Those that wait for
 * the GPU, or ask whether it is done, do not: they read memory that is not there, and the program
 * crashes (seen with driver 580). So they stop at this door while the grant is not taken, which is
 * from before its memory goes until after it is back (aliquot/layout.h: hold).
 *
 * Who is past the door is counted where the arbiter reads it. Who freezes a process waits for them:
 * what they wait for comes to its end, since no new work begins, and nobody follows them. Guarantee:
 * with the grant not taken and the count at 0, no such call is in the driver or will be.
 */
#ifndef ALIQUOT_DOOR_H
#define ALIQUOT_DOOR_H

#include <stdbool.h>

/* Through it, as soon as it is open. True: door_leave must follow. */
bool door_enter(void);
void door_leave(void);

#endif
