/* Memory pools, charged by what they reserve of the card.
 *
 * A pool grows in steps of 32 MiB (seen on a card), keeps what is freed until the next
 * synchronisation, and tells what it has. So: before an allocation the step that it could need is
 * charged, after it the charge is set to what the pool then has, and again when a synchronisation
 * may have let it shrink. Threads that allocate at once keep their steps charged until each has
 * its answer, so the charge is never below what the pool reserved.
 */
#ifndef ALIQUOT_POOL_H
#define ALIQUOT_POOL_H

#include "hooked.h"

#include <stdbool.h>
#include <stdint.h>

/* An allocation of `bytes` of this pool was freed, now or in stream order. */
void pool_freed(CUmemoryPool pool, uint64_t bytes);
void pool_freed_async(CUmemoryPool pool, uint64_t bytes);

/* After a synchronisation: charge what the pools have now. Costs nothing when none was freed to. */
void pools_settle(void);

/* Have every pool give up what it keeps unused; true: some charge was given back. */
bool pools_trim(void);

#endif
