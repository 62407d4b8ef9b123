/* Device memory that several processes of the machine hold: pure functions on the machine's file.
 *
 * The model. As on an H200, such memory counts once: for the process that created it while that process
 * holds it, then for another holder. It is given back with its last holder. A process may hold it
 * several times. A descriptor that nobody has imported holds nothing here; the next process that
 * imports it takes the memory anew.
 *
 * Precondition of every function: the file's lock is held.
 */
#ifndef SIM_SHARE_H
#define SIM_SHARE_H

#include "machine.h"

/* A process, whose usage contains the bytes, holds new shared memory; NULL: too much is shared. */
struct sim_share *share_add(struct sim_map *map, uint64_t id, uint32_t slot, uint32_t gpu,
                            uint64_t bytes);
/* NULL: nobody holds it. */
struct sim_share *share_find(struct sim_map *map, uint64_t id);
/* The process holds it once less. */
void share_leave(struct sim_map *map, struct sim_share *share, uint32_t slot);
/* The process has ended: it holds nothing any more. */
void share_forget(struct sim_map *map, uint32_t slot);

#endif
