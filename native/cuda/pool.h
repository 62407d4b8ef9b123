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

/* A pool that the program made or imported; SESSION_NO_SLICE: its memory is not ours to count. */
void pool_remember(CUmemoryPool pool, uint32_t slice);
/* The program ended it; what is allocated from it lives on until it is freed. */
void pool_destroyed(CUmemoryPool pool);
/* The slice whose memory a pool is of. */
uint32_t pool_slice(CUmemoryPool pool);

/* The memory that a device's graphs allocate, as a pool like the others: what they reserve of the card
 * is known by another name. */
CUmemoryPool pool_of_graphs(CUdevice device);

/* Before a pool may grow by `bytes`: charge the step, and say it in *step. False: there is no room. */
bool pool_begin(CUmemoryPool pool, uint32_t slice, uint64_t bytes, uint64_t *step);
/* After it: charge what the pool has now. False: that is more than there is room for. */
bool pool_end(CUmemoryPool pool, uint64_t step);

/* An allocation of this pool was made: the pool is charged for it, its pointer is remembered. */
void pool_count_in(CUmemoryPool pool, uint32_t slice, CUdeviceptr pointer, uint64_t bytes);

/* An allocation of `bytes` of this pool was freed, now or in stream order. */
void pool_freed(CUmemoryPool pool, uint64_t bytes);
void pool_freed_async(CUmemoryPool pool, uint64_t bytes);

/* After a synchronisation: charge what the pools have now. Costs nothing when none was freed to. */
void pools_settle(void);

/* Have every pool give up what it keeps unused; true: some charge was given back. */
bool pools_trim(void);

#endif
