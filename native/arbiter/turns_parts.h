/* What the parts of turns.h share among themselves; nobody else includes it.
 *
 * turns_parts.c    what a contender is, and its weight
 * turns_members.c  contenders and their processes come and go
 * turns_charge.c   looking at them, and whose the time was
 * turns_window.c   windows begin and end, credit is given and taken
 * turns.c          the decisions: who is next, and when to look again
 */
#ifndef ARBITER_TURNS_PARTS_H
#define ARBITER_TURNS_PARTS_H

#include "loop.h"
#include "turns.h"

#define MICROSECOND_NS UINT64_C(1000)

/* A holder that usually comes back sooner than this is waited for. */
#define TURNS_GAP_MOST_NS (400 * MICROSECOND_NS)

#define EACH(one, of) for (struct contender *one = (of)->contenders; one; one = one->next)
#define EACH_WORKER(one, of) for (struct worker *one = (of)->workers; one; one = one->next)

bool contender_is_hard(const struct contender *contender);
/* Whose work goes first: a lower one comes in while a higher one holds. */
int contender_class(const struct contender *contender);
bool contender_may_hold(const struct contender *contender);
bool contender_is_drained(const struct contender *contender);
bool contender_is_on_the_gpu(const struct contender *contender);
/* How long what it has credit for and has not done should take. */
uint64_t contender_in_hand(const struct contender *contender);
/* The part of the GPU that tokens come in by, and how many are kept. */
double contender_token_rate(const struct contender *contender);
double contender_tokens_most(const struct contender *contender);

bool turns_have_latency(const struct turns *turns);
/* When the next latency contender is due, of those that come at regular times. */
struct turns_due {
	uint64_t in_ns; /* TURNS_NEVER: none is */
	uint64_t period_ns;
};
struct turns_due turns_due(const struct turns *turns, uint64_t now);
unsigned turns_on_the_gpu(const struct turns *turns);
void turns_weigh(struct turns *turns);

/* `had_it_alone`: nobody else was on the GPU since the last look. */
void contender_look(struct contender *contender, bool had_it_alone, uint64_t now);
void turns_charge(struct turns *turns, uint64_t passed);
/* It no longer waits for credit. */
void contender_count_wait(struct contender *contender, uint64_t now);

void contender_begin_window(struct contender *contender, uint64_t now);
/* `at_once`: what it has credit for and has not begun is taken back. */
void contender_end_window(struct contender *contender, bool at_once, uint64_t now);
/* From one state to the next, as far as its processes have come. */
void contender_move_on(struct contender *contender, uint64_t now);
void contender_set_state(struct contender *contender, enum contender_state state, uint64_t now);
void contender_give(struct contender *contender, uint64_t now);
void contender_hold_out(struct contender *contender);
void contender_open_gates(struct contender *contender);

#endif
