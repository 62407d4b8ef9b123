/* Turns with memory: which swappable slices of a GPU have their memory on it, and how much of the others'
 * must leave. A pure function of what is seen; parking.h asks it and does what it says.
 *
 * A slice that is ON has all of its limit, whatever its programs use of that: they may allocate. One that is OFF
 * has what it has left on the GPU, cannot run, and needs all of its limit to return. So the limits of those that
 * are on and what the others have left never exceed the room: the GPU's memory less everything that does not
 * take turns.
 *
 * Who returns: the slice that waits and has been served least for its weight; before all others one that has
 * been off for the time that it accepts at most. Who leaves for it: one that has been idle for as long as a return
 * takes; then, of those whose window is over and that have been served at least as much, the one that
 * was served most. So slices that need the GPU all the time are served by their weights, however long their
 * windows are.
 *
 * A window is as long as it must be for moving to cost at most 4 % of the time; shorter if somebody would be off
 * for longer than it accepts; and never shorter than three exchanges or half of that time.
 *
 * How much leaves: what is missing for the one that returns, and no more. If one that leaves cannot free enough,
 * those that are off already leave more, and then a second one leaves.
 *
 * Nobody waits for one that refuses, if others can be served meanwhile. A slice is blocked if it finds no room because
 * others are unwilling, and would if they gave up what they can. It is not blocked while memory that it needs can
 * still come from others, or is on its way.
 */
#ifndef ARBITER_MEMORY_TURNS_H
#define ARBITER_MEMORY_TURNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum memory_turn { MEMORY_ON, MEMORY_LEAVING, MEMORY_OFF, MEMORY_RETURNING };

struct memory_member {
	enum memory_turn turn;
	uint64_t limit_bytes;
	uint64_t staying_bytes; /* OFF: on the GPU now */
	uint64_t least_bytes;   /* would stay if all left that can */
	uint64_t since;         /* it is ON or OFF */
	uint64_t wanted_at;     /* OFF: since when a program waits for it; 0: none does */
	uint64_t wait_ns;       /* it shall not be off for longer */
	double weight;          /* more than 0 */
	double served;          /* time on the GPU for its weight */
	bool idle;    /* ON: its programs have had nothing to do for as long as a return takes */
	bool refuses; /* it could not leave lately, and is not asked now */
	bool
		unwilling; /* it gives nothing, as far as is known: it is stopped, or could not leave and has not begun
	                    * to */
	bool may_be_ended; /* that has lasted, and it may be ended for others */
};

/* No member returns, or: it stays as it is. */
#define MEMORY_NONE SIZE_MAX
#define MEMORY_STAYS UINT64_MAX

struct memory_plan {
	size_t waiting; /* who waits for room, or MEMORY_NONE */
	bool returns;   /* it has it: it returns now */
	uint64_t *
		keep; /* for each member what it may keep of the GPU, or MEMORY_STAYS; the caller's array */
	uint64_t window_ns; /* how long a slice stays on if others wait */
};

/* Decides. `exchange_ns`: how long it takes until one has left and another has returned. */
void memory_turns_plan(const struct memory_member *members, size_t count, uint64_t room_bytes,
                       uint64_t exchange_ns, uint64_t now, struct memory_plan *out);

/* Adds what a time brought to each that was on, not idle and not moving. One that begins to wait after it was idle
 * has saved nothing: it is served like the least served of the others. */
void memory_turns_serve(struct memory_member *members, size_t count, uint64_t passed_ns);
double memory_turns_newcomer(const struct memory_member *members, size_t count, size_t newcomer);

/* Whether the member, which is OFF and waits, is blocked. */
bool memory_turns_is_blocked(const struct memory_member *members, size_t count, uint64_t room_bytes,
                             size_t waiting);

/* Which member is to be ended for one that is blocked: the smallest that suffices by itself, otherwise the largest.
 * MEMORY_NONE: there would be no room even if all were that may be. */
size_t memory_turns_to_end(const struct memory_member *members, size_t count, uint64_t room_bytes,
                           size_t waiting);

#endif
