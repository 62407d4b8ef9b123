/* Where the memory of a swappable grant shall be, on its GPU or on the host, and where it is (aliquot/move.h).
 *
 * The record has the wanted place and a count of the changes, so both outlive the arbiter. Programs sleep on
 * that word in `limits`, and write to their work pages what they have done about it.
 *
 * A parked grant leaves contexts and fixed memory on its GPU. They count there (capacity.h) as NVML reports
 * them, never by what a program says. The figure is taken before the grant is parked, and from every later
 * snapshot that has one. Where NVML does not report it, the whole slice counts.
 *
 * Guarantees: a change is in the record before a program sees it. Whatever a program writes to its page, it
 * does not say more than the program has been charged.
 */
#ifndef ARBITER_RESIDENCE_H
#define ARBITER_RESIDENCE_H

#include "json.h"
#include "processes.h"

/* Whether programs' memory can leave the GPU. */
bool residence_is_swappable(const struct grant *grant);

/* Wants the memory on the host or on the GPU; does nothing if that is wanted already. False: the grant is
 * not swappable, or it is parked and its memory shall come back: there may be no room. It answers before
 * the memory has moved. */
bool residence_set(struct grant *grant, bool on_host, struct failure *failure);

/* Wants a part of the memory, or all, on the host (layout.h: leave_parts), and all calls that use it to wait. False:
 * so much or more is wanted there already. Precondition: the grant is swappable. */
bool residence_leave(struct grant *grant, uint32_t leave_parts);
/* Whether calls that ask for memory are out of memory instead of waiting (layout.h: refused). It ends when the memory
 * shall be somewhere else. */
void residence_refuse(struct grant *grant, bool refused);
/* Whether all of it is wanted there. */
bool residence_leaves_whole(const struct grant *grant);

/* What its programs say of their memory, within what they are charged. */
struct residence_sum {
	uint64_t charged_bytes, movable_bytes;
	uint64_t away_bytes; /* of the movable */
};
void residence_sum(const struct grant *grant, struct residence_sum *out);

/* Whether the process has dealt with the newest change. */
bool residence_is_settled(const struct process *process);

/* Whether the memory shall be on the host: then NVML reports less than the ledger. */
bool residence_is_away(const struct grant *grant);

/* What its programs say that they cannot move: an estimate of what stays. */
uint64_t residence_fixed_bytes(const struct grant *grant);

/* What the grant has of its GPU while it is parked. */
uint64_t residence_staying_bytes(const struct grant *grant);
/* Whether a new snapshot is needed before that grant can be parked: it is swappable and has processes. */
bool residence_needs_snapshot(const struct grant *grant);
/* Takes what its processes use from the newest snapshot; `answered`: it is new. */
void residence_take_staying(struct grant *grant, bool answered);
/* There is a new snapshot of that GPU. */
void residence_on_snapshot(struct arbiter *arbiter, unsigned gpu);

/* Wakes programs that sleep on the word: an arbiter may have been killed after it wrote the record. */
void residence_wake(const struct grant *grant);

/* Writes members of the object that is open:
 *
 *   swap           whether its memory can leave the GPU
 *   residence      host or gpu: where it shall be; null without swap
 *   moves          how often that has changed
 */
void residence_write(const struct grant *grant, struct json *out);

/* Writes what a process says of its memory; nothing if its grant is not swappable.
 *
 *   settled        it has dealt with the newest change: its memory is there, or `move_failed` says why not
 *   residence      where the newest change that it has dealt with wanted the memory
 *   away_bytes     of its memory, on the host
 *   fixed_bytes    of its memory, cannot leave
 *   move_failed    why its memory did not move, or null
 */
void residence_write_process(const struct process *process, struct json *out);

#endif
