/* Parking: the memory of an idle grant leaves its GPU by itself, and comes back when a program needs it.
 *
 * A grant that was made with park-after=MILLISECONDS and has had no GPU work for so long is parked, with
 * park-if=wanted as soon as somebody wants its room (wants.h); its programs keep running. All decisions about it are here:
 *
 *     NONE       it is used as any other
 *     LEAVING    active; its memory shall be on the host. If a program needs it meanwhile, or some of it does
 *                not leave, it is RETURNING
 *     AWAY       parked: what it has left on its GPU counts (residence.h), the rest is free for others
 *     RETURNING  active; its memory comes back, and calls that need it wait. Then NONE
 *
 * A program whose call waits says so in its work page (credit.h: wanted) and sends RING; the timer looks as
 * well, since a RING may be lost. One that joins says so by its HELLO. A grant that is wanted and does not fit
 * waits. Of those that wait for a GPU, the first returns first, and newcomers get none of what it needs.
 *
 * Guarantees. The step is in the record, and each step can be repeated: an arbiter that was killed at any
 * instruction leaves a step that the next one continues. Whatever a program writes to its page, the grant
 * leaves its GPU only as far as NVML says, and returns only if it fits. No step but AWAY lasts longer than
 * PATIENCE without progress, or than LONGEST whatever a program says of its progress. `set-state` and `move` end
 * the parking: the grant is then where they put it.
 */
#ifndef ARBITER_PARKING_H
#define ARBITER_PARKING_H

#include "json.h"
#include "processes.h"

/* Does what is due for all grants. Whether it should be called again soon: memory of one is on its way, or what one did
 * may be for another. rotation.h calls it. */
bool parking_update(struct arbiter *arbiter);

/* A program of the grant may have begun to wait for memory. `joins`: it cannot join before that is back. False:
 * nothing has left. */
bool parking_ring(struct grant *grant, bool joins);

enum parking_step parking_step(const struct grant *grant);

/* For a grant that takes turns with memory (rotation.h): it leaves because others have their turn, or more of
 * it leaves (layout.h: leave_parts); it returns, and false if it does not fit; why it does not. */
void parking_leave(struct grant *grant, uint32_t leave_parts);
bool parking_return(struct grant *grant);
void parking_say_why(struct grant *grant, const char *why);
/* Whether it may have its slice again as soon as there is room. If not, the grant says why. */
bool parking_may_return(struct grant *grant);

/* It was suspended, and takes turns again; its memory returns when a program needs it. */
bool parking_take_turns(struct grant *grant, struct failure *failure);

/* Whether its programs have had no work and used no memory for so long, and tell so. */
bool parking_is_idle(struct grant *grant, uint64_t for_ns);
/* Whether a signal or a debugger has stopped one of them. */
bool parking_has_stopped(const struct grant *grant);

/* For memory_turns.h: whether it is not asked to leave now; whether it gives nothing, as far as is known: it is
 * stopped, or within the last minute could not leave for managed memory, or twice in a row for any reason that
 * is not NVML's, and has not begun to leave since. One that was killed gives its memory soon. */
bool parking_refuses(struct grant *grant);
bool parking_is_unwilling(const struct grant *grant);
/* Whether it is `background` and was unwilling for so long that it may be ended: it has been stopped for 2 s, or has
 * failed twice in a row for reasons of its own. Those are managed memory, and GPU work of which nothing ends for 4 s
 * although nobody else has any. What NVML, the mover or the host lacks is no reason of its own. */
bool parking_may_be_ended(const struct grant *grant);
/* Kills its programs. False: none of them can be, or was already. */
bool parking_end(struct grant *grant, const char *reason);

/* A request (set-state or move) decides where the grant is. */
void parking_drop(struct grant *grant);

/* Whether its memory is on its way: NVML's figures say little. */
bool parking_moves(const struct grant *grant);

/* Writes members of the object that is open:
 *
 *   park_after_ms      after so long without GPU work; null: never
 *   park_if_wanted     only if somebody wants its room
 *   park_due           it has had no GPU work for so long, and may be parked
 *   parking            none, leaving, away or returning
 *   parked_times       how often it was parked, parked_ns for how long in all, also now
 *   parked_for_ns      for how long it is parked now; null: it is not
 *   parking_waits      whether a program waits for its memory
 *   parking_why        why it was not parked, or does not come back; null: nothing failed, or
 *                      not `visible`
 */
void parking_write(const struct grant *grant, bool visible, struct json *out);

#endif
