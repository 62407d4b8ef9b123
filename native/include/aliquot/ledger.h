/* The memory ledger of one slice: reserve first, then allocate; give back if that fails.
 *
 * The model. `word` holds the slice's total, the slot that changed it last and that slot's turn, in
 * one 64-bit word. Each slot has `held` (its units and its turn) and `pending` (what it is about to
 * add, and the turn this will be). To change the total a slot
 *   1. completes the change that the word describes, if its writer has not yet (any slot may do
 *      that: `held` carries the turn, so it happens once),
 *   2. announces its own change in `pending`,
 *   3. sets `word` to the new total, its slot and its turn: the one atomic step that both
 *      reserves and says which slot did,
 *   4. completes it as in 1.
 *
 * Guarantees.
 *   - At step 3 the total is within the capacity that was read just before. A reservation that does
 *     not fit the capacity just after step 3 is given back and fails, so none exceeds a limit that
 *     was lowered meanwhile.
 *   - A process killed between any two instructions leaves a total that is the sum of all `held`
 *     once the next one has done step 1: ledger_forget gives back exactly what it held.
 *   - Lock-free between processes: no process waits for a stopped or dead one.
 *
 * Precondition: one writer per slot at a time. The threads of a process share a lock; the arbiter
 * writes for a slot only when its process is dead.
 */
#ifndef ALIQUOT_LEDGER_H
#define ALIQUOT_LEDGER_H

#include "aliquot/layout.h"

#include <stdbool.h>

/* What programs can use of the slice: the limit, less what the driver took and the headroom. */
uint64_t ledger_capacity(const struct aliquot_slice_limits *limits);

/* Bytes as the ledger counts them: whole units, saturating. */
uint64_t ledger_round(uint64_t bytes);

/* Reserves `bytes` for `slot`; false: they do not fit the capacity, and nothing changed. */
bool ledger_reserve(struct aliquot_usage_slice *usage, const struct aliquot_slice_limits *limits,
                    uint32_t slot, uint64_t bytes);

/* Gives `bytes` back, at most what the slot has. */
void ledger_release(struct aliquot_usage_slice *usage, uint32_t slot, uint64_t bytes);

/* Gives back all that `slot` has. Only for a slot whose process is dead. False: the word changes all the
 * time, as no program would change it; nothing is given back, and the arbiter does not wait. */
bool ledger_forget(struct aliquot_usage_slice *usage, uint32_t slot);

/* The reserve for the driver in a slice of that size. */
uint64_t ledger_headroom(uint64_t limit);

/* What a context is charged in a slice of that size while nobody knows what it takes: 512 MiB, and at
 * most a quarter of the slice. */
uint64_t ledger_context_estimate(uint64_t limit);

/* Bytes in use in a slice, including the driver's. */
uint64_t ledger_in_use(const struct aliquot_usage_slice *usage,
                       const struct aliquot_slice_limits *limits);

/* Sets the limit, and the headroom that goes with it, in the record and in the view that programs
 * reserve by. False: more is in use, and the limit is as before. *used: bytes in use, including the
 * driver's. Only the arbiter calls it. */
bool ledger_set_limit(struct aliquot_usage_slice *usage, struct aliquot_slice_limits *record,
                      struct aliquot_slice_limits *view, uint64_t bytes, uint64_t *used);

uint64_t ledger_total(const struct aliquot_usage_slice *usage);
uint64_t ledger_held(const struct aliquot_usage_slice *usage, uint32_t slot);

#endif
