/* Memory pools, charged by what they reserve of the GPU's memory; and charging a slice, for which
 * pools may have to give up memory.
 *
 * The model. A pool grows in steps of 32 MiB (seen on a GPU), keeps what is freed until the next
 * synchronisation, and tells how much it has reserved. So the step that an allocation could need is
 * charged before it (pool_charge_step), and after it the charge is set to what the pool then has
 * (pool_settle). It is set again when a synchronisation may have let the pool shrink
 * (pools_settle). Threads that allocate at the same time keep their steps charged until each has
 * its answer, so the charge is never below what the pool has reserved.
 */
#ifndef ALIQUOT_POOL_H
#define ALIQUOT_POOL_H

#include "hooked.h"

#include <stdbool.h>
#include <stdint.h>

/* Take memory of a slice. If it does not fit, what other processes have let go of is given back, and
 * then all pools give up what they keep unused, as the driver would have them. False: it does not
 * fit even so. */
bool pools_charge(uint32_t slice, uint64_t bytes);

/* The program created or imported a pool. SESSION_NO_SLICE: its memory is not charged here. */
void pool_remember(CUmemoryPool pool, uint32_t slice);
/* The program exported a pool. A process that imports it keeps what the pool had reserved, though the
 * pool gives it up here, and NVML shows it for no process (seen on an H200). So from now on the charge
 * does not shrink until the pool is destroyed. What an importer keeps after that is not counted. */
void pool_exported(CUmemoryPool pool);
/* The program destroyed a pool. What is allocated from it lives on until it is freed. */
void pool_destroyed(CUmemoryPool pool);
/* The slice whose memory a pool reserves; SESSION_NO_SLICE: none of ours. */
uint32_t pool_slice(CUmemoryPool pool);

/* The memory that a device's graphs allocate, as a pool like the others. */
CUmemoryPool pool_of_graphs(CUdevice device);

/* Charge the step by which a pool may grow for an allocation of `bytes`; *step says how much.
 * False: it does not fit. */
bool pool_charge_step(CUmemoryPool pool, uint32_t slice, uint64_t bytes, uint64_t *step);
/* Set the charge to what the pool has now; `step` of it is no longer in flight. False: the pool has
 * more than was charged, and that does not fit. */
bool pool_settle(CUmemoryPool pool, uint64_t step);

/* An allocation of `bytes` was made from the pool; or freed, now or in stream order. */
void pool_allocated(CUmemoryPool pool, uint64_t bytes);
void pool_freed(CUmemoryPool pool, uint64_t bytes);
void pool_freed_async(CUmemoryPool pool, uint64_t bytes);

/* After a synchronisation: settle exported memory, and all pools if anything was freed in stream
 * order. */
void pools_settle(void);

#endif
