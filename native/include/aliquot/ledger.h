/* The memory ledger of one slice: reserve, allocate, settle or give back; never check-then-add.
 *
 * The model. `word` holds the slice's total, the slot that changed it last and that slot's turn, in
 * one 64-bit word. Each slot has `held` (its units and its turn) and `pending` (what it is about to
 * add, and the turn this will be). To change the total a slot
 *   1. completes the change the word tells of, if its writer has not yet (anybody may: `held`
 *      carries the turn, so it happens once),
 *   2. announces its own change in `pending`,
 *   3. swings `word` to the new total, its slot and its turn: the one atomic step that both
 *      reserves and says whose it is,
 *   4. completes it as in 1.
 *
 * Guarantees.
 *   - The total never passes the capacity at the instant of 3, as it was read just before. A
 *     reservation that does not fit the capacity as it is just after is given back and fails: none
 *     stands above a limit that was lowered meanwhile.
 *   - A process killed between any two instructions leaves a total that is the sum of all `held`
 *     once the next one has done step 1: ledger_forget gives back exactly what it held.
 *   - Lock-free between processes: a stopped or dead process keeps nobody waiting.
 *
 * Precondition: one writer per slot at a time (threads of a process take turns by a lock of their
 * own; the arbiter writes for a slot only when its process is dead).
 */
#ifndef ALIQUOT_LEDGER_H
#define ALIQUOT_LEDGER_H

#include "aliquot/layout.h"

#include <stdbool.h>

/* What the slice has for programs: the limit, less what the driver took and the headroom. */
uint64_t ledger_capacity(const struct aliquot_slice_limits *limits);

/* Bytes as the ledger counts them: whole units, saturating. */
uint64_t ledger_round(uint64_t bytes);

/* Take `bytes` for `slot` if they fit within the capacity; false: they do not, nothing changed. */
bool ledger_reserve(struct aliquot_usage_slice *usage, const struct aliquot_slice_limits *limits,
                    uint32_t slot, uint64_t bytes);

/* Give `bytes` back; at most what the slot holds. */
void ledger_release(struct aliquot_usage_slice *usage, uint32_t slot, uint64_t bytes);

/* Give back all that `slot` holds. For a slot whose process is dead. */
void ledger_forget(struct aliquot_usage_slice *usage, uint32_t slot);

/* What is kept free of a slice of that size for the driver. */
uint64_t ledger_headroom(uint64_t limit);

/* Makes `bytes` the limit, and the headroom that of it. False: more is in use, and the limit is as
 * before. *used: what is in use, the driver's part included. For the one who writes the limits. */
bool ledger_set_limit(struct aliquot_usage_slice *usage, struct aliquot_slice_limits *limits,
                      uint64_t bytes, uint64_t *used);

uint64_t ledger_total(const struct aliquot_usage_slice *usage);
uint64_t ledger_held(const struct aliquot_usage_slice *usage, uint32_t slot);

#endif
