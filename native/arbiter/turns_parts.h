/* Turns: what each priority and policy of a slice means: who goes first, who may hold the GPU, with
 * which weight. Internal: only the files of turns include it.
 *
 * turns_parts.c    the class of a priority, what a policy allows, weights
 * turns_members.c  adding and removing contenders and their processes
 * turns_overlap.c  clients of an MPS server, whose kernels run at the same time
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

/* A client of an MPS server overlaps with others after it had the GPU for itself for this long. What it was
 * estimated to take before it was measured at all says nothing: the first half does not count. */
#define MEASURED_LEAST_NS (1000 * MILLISECOND_NS)

#define EACH(one, of) for (struct contender *one = (of)->contenders; one; one = one->next)
#define EACH_WORKER(one, of) for (struct worker *one = (of)->workers; one; one = one->next)
/* The others of its group. */
#define EACH_JOINT(one, of) for (struct contender *one = (of)->joint; one != (of); one = one->joint)

bool contender_is_hard(const struct contender *contender);
/* Whether its kernels may run at the same time as those of others of its group. */
bool contender_overlaps(const struct contender *contender);
/* Whether two of a group hold their GPU together. */
bool contender_is_companion(const struct contender *one, const struct contender *other);
/* Whether it comes first because its group holds another GPU: not if it is far ahead of the others. */
bool contender_is_called(const struct contender *contender);
/* The least used time of the other contenders of its class that have work; below 0: there are none. */
double contender_least_used(const struct contender *contender);
/* One round, in the unit of `used`. */
double turns_round(const struct turns *turns);
/* Of the contender and its active companions: the sum of the weights, and the mean of the used time. */
double contender_group_weight(const struct contender *contender);
double contender_group_used(const struct contender *contender);
/* The class of its priority: a contender of a lower class starts while one of a higher class holds. */
int contender_class(const struct contender *contender);
bool contender_may_hold(const struct contender *contender);
bool contender_is_drained(const struct contender *contender);
bool contender_is_on_the_gpu(const struct contender *contender);
/* Whether its work may run at any time, also while another contender holds: one of its processes is
 * unheld (turns_work.h), or it has work and is exempt. */
bool contender_runs_beside(const struct contender *contender);
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

/* The number of processes that had work on the GPU at the last look, which shares its time between
 * them; 0: they belong to contenders that do not hold together. */
unsigned turns_sharers(const struct turns *turns);
/* `sharers`: with how many processes one of this contender's shared the GPU; 0: the time is unknown.
 * `passed`: for so long it had the GPU for itself; 0: it had not. */
void contender_look(struct contender *contender, unsigned sharers, uint64_t passed, uint64_t now);
void turns_charge(struct turns *turns, uint64_t passed);
/* An overrun of more than a round, which it could not help, does not count any more. */
void contender_forget_debt(struct contender *contender);
/* Records the wait for credit that has just ended. */
void contender_count_wait(struct contender *contender, uint64_t now);

/* Notes what it did since the last look; `passed` as above. */
void contender_note_progress(struct contender *contender, uint64_t finished_ns, uint64_t passed);
/* Whether it has progressed so far beyond its companions that it gets no more credit for now. */
bool contender_is_ahead(const struct contender *contender);
/* How far ahead it gets credit, if that is usually so far. */
uint64_t contender_ahead_ns(const struct contender *contender, uint64_t usual_ns);
/* The part of the time that it is said to have used, of that in which several work. */
double contender_used_ns(const struct contender *contender);
/* Now and then has one of those that work at the same time to itself, so that it is measured. True: the
 * holder's window must end for it. */
bool turns_measure_overlapping(struct turns *turns, uint64_t now);
uint64_t contender_measure_ns(const struct contender *contender);
void turns_forget_measured(struct turns *turns, uint64_t now);
/* Progress is not saved up: those that did not use their part fall behind so far and no further. */
void turns_bound_progress(struct turns *turns);
void turns_sum_progress(struct turns *turns, uint64_t passed);

void contender_begin_window(struct contender *contender, uint64_t now);
/* A companion of the holder gets credit until the holder's window ends. */
void contender_join_window(struct contender *companion, uint64_t now);
/* It no longer holds: another that does leads its window on. */
void contender_leave_window(struct contender *contender);
/* Ends the window of the holder and its companions. `at_once`: takes back credit for quanta that have not started. */
void contender_end_window(struct contender *contender, bool at_once, uint64_t now);
/* Moves it to its next state if its processes are done, or late. */
void contender_move_on(struct contender *contender, uint64_t now);
void contender_set_state(struct contender *contender, enum contender_state state, uint64_t now);
void contender_give(struct contender *contender, uint64_t now);
/* It keeps the credit that it has. */
void contender_hold_back(struct contender *contender);
void contender_hold_out(struct contender *contender);
void contender_open_gates(struct contender *contender);

#endif
