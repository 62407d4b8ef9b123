/* Memory of the host that programs get where their slice is full, mapped on the GPU.
 *
 * A grant with `spill` may have so much of it. The stand-in takes it and counts it in the grant's ledger, in the
 * entry ALIQUOT_HOST_SLICE (aliquot/layout.h). What is granted is set aside: all grants' together, and what
 * movers have, stay below the machine's limit (--host-memory), and a tenth of the host stays free even if all of it
 * is used.
 */
#ifndef ARBITER_SPILL_H
#define ARBITER_SPILL_H

#include "grant.h"
#include "json.h"
#include "processes.h"

/* What the grant may have; 0: it has no `spill`. */
uint64_t spill_limit(const struct grant *grant);

/* Of all grants together. */
uint64_t spill_granted_bytes(const struct arbiter *arbiter);

/* Whether the host has so much for a new grant. `set_aside` is for memory that leaves GPUs (overcommit.h). */
bool spill_check(const struct arbiter *arbiter, uint64_t bytes, uint64_t set_aside,
                 struct failure *failure);

/* Writes
 *   spill_bytes    what the grant may have of the host
 *   on_host_bytes  what its programs, or the process, have of it
 * Of a process the second, and nothing if its grant has no `spill`. */
void spill_write(const struct grant *grant, struct json *out);
void spill_write_process(const struct process *process, struct json *out);

#endif
