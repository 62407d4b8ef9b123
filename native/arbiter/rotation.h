/* Turns with memory on each GPU: who leaves, who returns, and when it is looked at again.
 *
 * A swappable grant that was made while the arbiter had --overcommit above 100 takes turns. memory_turns.h decides; this
 * part finds out how things are, and parking.h does the steps. A grant whose turn it is not is parked: its programs
 * run until they need their memory. It is granted its slice all the time (capacity.h).
 *
 * Guarantees. What a grant has left on its GPU is what NVML says. Nobody returns before what it needs is free by that
 * figure. What programs say of their memory decides who is asked for how much, and nothing else. A grant that
 * does not leave keeps nobody else off the GPU: the others are asked, and it is said why the one that waits waits.
 * Nobody leaves for a grant that may not return: it was idle and parked, and others have its share or its limit now.
 * Decisions are made from the records and pages alone, so the next arbiter continues; it has forgotten who was
 * served how long.
 */
#ifndef ARBITER_ROTATION_H
#define ARBITER_ROTATION_H

#include "json.h"
#include "processes.h"

/* Does what is due for all grants: also what parking.h does. */
void rotation_update(struct arbiter *arbiter);
void rotation_on_timer(struct timer *timer);

/* A program of the grant may have begun to wait for memory. `joins`: it cannot join before that is back. */
void rotation_ring(struct grant *grant, bool joins);

/* Writes members of the object that is open:
 *
 *   takes_turns      whether it takes turns with memory
 *   swap_wait_ms     for how long it shall be off its GPU at most
 *   turns_percent    of its GPU's memory, what may be granted beside it; 0: as the GPU's overcommit_percent
 *   off_turn         whether it is off its GPU because others have their turn, or leaves or returns
 *   off_times        how often it was; off_ns for how long in all, longest_off_ns at a time
 *   off_for_ns       for how long now; null: it is not
 */
void rotation_write(const struct grant *grant, struct json *out);

/* Writes of a GPU:
 *
 *   overcommit_percent  of its memory that swappable slices may be granted together
 *   moving_permille     of the last minute in which memory moved for turns
 */
void rotation_write_gpu(const struct arbiter *arbiter, unsigned gpu, struct json *out);

#endif
