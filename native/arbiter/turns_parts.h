/* Turns: what each priority and policy of a slice means: who goes first, who may hold the GPU, with
 * which weight. Internal: only the files of turns include it.
 *
 * turns_parts.c    the class of a priority, what a policy allows, weights
 * turns_members.c  adding and removing contenders and their processes
 * turns_charge.c   observing contenders, and charging them for GPU time
 * turns_window.c   starting and ending windows, giving and taking back credit
 * turns_work.c     reading a process's work page, writing its credit page
 * turns.c          the decisions: which contender is next, and when to look again
 */
#ifndef ARBITER_TURNS_PARTS_H
#define ARBITER_TURNS_PARTS_H

#include "loop.h"
#include "turns.h"

#define MICROSECOND_NS UINT64_C(1000)

/* A holder that usually has new work sooner than this keeps its window. */
#define TURNS_GAP_MOST_NS (400 * MICROSECOND_NS)

#define EACH(one, of) for (struct contender *one = (of)->contenders; one; one = one->next)
#define EACH_WORKER(one, of) for (struct worker *one = (of)->workers; one; one = one->next)

bool contender_is_hard(const struct contender *contender);
/* The class of its priority: a contender of a lower class starts while one of a higher class holds. */
int contender_class(const struct contender *contender);
bool contender_may_hold(const struct contender *contender);
bool contender_is_drained(const struct contender *contender);
bool contender_is_on_the_gpu(const struct contender *contender);
/* An estimate of the time for its unfinished work that it has credit for. */
uint64_t contender_in_hand(const struct contender *contender);
/* Tokens per ns, and the maximum number of tokens. */
double contender_token_rate(const struct contender *contender);
double contender_tokens_most(const struct contender *contender);

bool turns_have_latency(const struct turns *turns);
/* When the next latency contender is due, among those that have work at regular times. */
struct turns_due {
	uint64_t in_ns; /* TURNS_NEVER: none is due */
	uint64_t period_ns;
};
struct turns_due turns_due(const struct turns *turns, uint64_t now);
unsigned turns_on_the_gpu(const struct turns *turns);
void turns_weigh(struct turns *turns);

/* `had_it_alone`: no other contender was on the GPU since the last look. */
void contender_look(struct contender *contender, bool had_it_alone, uint64_t now);
void turns_charge(struct turns *turns, uint64_t passed);
/* Records the wait for credit that has just ended. */
void contender_count_wait(struct contender *contender, uint64_t now);

void contender_begin_window(struct contender *contender, uint64_t now);
/* `at_once`: takes back credit for quanta that have not started. */
void contender_end_window(struct contender *contender, bool at_once, uint64_t now);
/* Moves it to its next state if its processes are done, or late. */
void contender_move_on(struct contender *contender, uint64_t now);
void contender_set_state(struct contender *contender, enum contender_state state, uint64_t now);
void contender_give(struct contender *contender, uint64_t now);
void contender_hold_out(struct contender *contender);
void contender_open_gates(struct contender *contender);

#endif
