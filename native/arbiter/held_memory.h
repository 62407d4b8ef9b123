/* Programs whose memory is on the host: it is lost if the arbiter ends for good.
 *
 * The arenas (aliquot/arena.h) are held by the arbiter's parent and its guard, and by nobody else. So an
 * arbiter that is asked to end refuses while they hold copies, or while a program is about to fill them. A
 * signal cannot be refused: then the log says what was lost. Such programs continue to wait for memory
 * that cannot come back, until they are ended.
 */
#ifndef ARBITER_HELD_MEMORY_H
#define ARBITER_HELD_MEMORY_H

#include "failure.h"

#include <stdbool.h>

struct arbiter;
struct mover_processes;

/* Whether no program has memory on the host, or on its way there. False and `failure`: it names the grants. */
bool held_memory_is_none(struct arbiter *arbiter, struct failure *failure);

/* For the last holder of the arenas, when it ends: logs which living programs had memory there. */
void held_memory_log_lost(const struct mover_processes *movers);

#endif
