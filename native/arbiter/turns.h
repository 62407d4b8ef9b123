/* Who may use a GPU now: the decisions about credit, and nothing else.
 *
 * The model. Each slice that has processes on a GPU is a contender there, with a weight. One of them
 * is the holder: its processes get credit a little ahead of what they have done, for a window in
 * proportion to its weight; then it gets no more, what it has is waited for, and the next one holds.
 * What a contender used is the time it held the GPU, the waiting for its last quantum included; who
 * used least for its weight is next, so what one overran is made good by the next windows. A
 * contender without work is not waited for, unless it usually comes back at once; its part goes to
 * the others by their weights, and nobody saves up time.
 *
 * A contender that is alone has its gates open and is not looked at. A `hard` one never is: its time
 * is counted against the clock. A `latency` one that has work and time left of its part comes in
 * beside who holds, who gets no more credit. A `background` one holds only when no other has work.
 *
 * Never a deadlock: a holder that does not come to its end within a bound no longer keeps the next
 * out. Then the GPU's own time-slicing shares it; that is counted, and by whose fault.
 *
 * One whose grant is not taken is set aside: its gates stand open, and it is neither looked at nor
 * waited for nor charged, whoever is in it. It comes back as one that has had no work.
 *
 * Slices of one grant on several GPUs hold together: when one of them gets its window the others are
 * called in on theirs, because their kernels may wait for one another.
 *
 * No clock, no system call, no lock: time comes in, the time to look again goes out, and the pages
 * are memory. Guarantee: whatever the work pages say, every contender with work that is not in the
 * background holds the GPU again within the sum of the others' windows and bounds.
 */
#ifndef ARBITER_TURNS_H
#define ARBITER_TURNS_H

#include "aliquot/credit.h"

#include <stdbool.h>

#define TURNS_NEVER UINT64_MAX
#define TURNS_WAITS 160u /* of the histogram of waits: four for each doubling, from a microsecond */

struct turns;

/* What was asked for a slice. */
struct turns_settings {
	uint32_t percent; /* 0: an equal part of what the others leave */
	enum aliquot_policy policy;
	enum aliquot_priority priority;
	enum aliquot_hold hold; /* of all the grant's slices at once */
};

/* What is told of a contender; all of it only grows. */
struct turns_figures {
	uint64_t used_ns;   /* it held the GPU */
	uint64_t handovers; /* windows it had */
	uint64_t fallbacks; /* times it did not come to its end within the bound */
	uint64_t waits;     /* times it waited for credit */
	uint64_t waited_ns; /* in all of them */
	uint64_t waits_in[TURNS_WAITS];
};

/* One process of a contender. Its owner keeps the memory from turns_enter to turns_leave. */
struct worker {
	struct worker *next;
	const struct aliquot_work_slice *work;
	struct aliquot_credit_slice *credit;
	uint64_t opened, closed, done; /* quanta, as seen last; `done` is the newest that is over */
	uint64_t passed;               /* the newest that began and was not closed yet */
	uint64_t launches;             /* as seen last */
	uint64_t moved_at;             /* when any of these, or its credit, changed last */
	uint64_t timed_at;             /* the look up to which busy_ns counts; 0: it was not at work */
	uint64_t busy_ns;
	uint64_t given; /* the credit it holds with; 0: it does not hold */
	double stretch; /* of what it is expected to have in hand, to what it needs */
	bool gated;     /* its gates work */
	bool pending;   /* it has work that is not over */
};

enum contender_state {
	CONTENDER_OUT,     /* gets no credit, or only what it may begin with */
	CONTENDER_HOLDS,   /* gets credit */
	CONTENDER_DRAINS,  /* gets none any more, and has not come to the end of what it got */
	CONTENDER_OVERDUE, /* the same for longer than the bound: the others go on beside it */
	CONTENDER_EXEMPT,  /* was overdue too often: its gates stand open for a while */
};

/* One slice on its GPU. Its owner keeps the memory from turns_add to turns_remove. */
struct contender {
	struct turns *turns;
	struct contender *next;
	struct contender *joint; /* ring of the same grant's contenders on other GPUs; itself: none */
	struct turns_settings settings;
	struct worker *workers;
	struct turns_figures figures;
	enum contender_state state;
	bool pending;         /* one of its processes has work */
	bool active;          /* it has, or had some lately */
	bool called;          /* its grant holds another GPU and waits for this one */
	double used;          /* ns for each percent of its weight: who has least is next */
	double weight;        /* in percent of the GPU; 0: its grant is parked */
	double tokens;        /* ns that `hard` may use, and `latency` may come in with */
	bool spent;           /* they ran out, and are not half there again */
	uint64_t since;       /* this state's beginning */
	uint64_t window_ns;   /* of this turn */
	uint64_t in_hand_ns;  /* how long what it had not done should take when it began to drain */
	uint64_t active_at;   /* it had work */
	uint64_t idle_at;     /* it ran out of work; 0: it has some */
	uint64_t gap_ns;      /* how soon it usually comes back */
	uint64_t arrived_at;  /* it came back after a while, the last time */
	uint64_t period_ns;   /* between two of these */
	unsigned regular;     /* arrivals in a row that came when that was over */
	uint64_t waits_at;    /* it waits for credit since; 0: it does not */
	uint64_t longest_ns;  /* that coming to its end took, lately */
	uint64_t fallback_at; /* the last one */
	unsigned fallbacks_in_a_row;
};

/* One GPU. */
struct turns {
	struct contender *contenders;
	struct contender *aside; /* those whose grant is not taken */
	struct contender *holder;
	uint64_t looked_at;
	uint64_t round_ns;
	bool contended; /* turns are taken */
};

void turns_init(struct turns *turns, uint64_t now);

/* `joint`: a contender of the same grant on another GPU; NULL: the first. */
void turns_add(struct turns *turns, struct contender *contender,
               const struct turns_settings *settings, struct contender *joint, uint64_t now);
void turns_remove(struct contender *contender);

/* Live resize: counts from the next window. A hold counts at once. */
void turns_change(struct contender *contender, const struct turns_settings *settings, uint64_t now);

/* A process comes with its pages or goes; a page that is left has its gates open. */
void turns_enter(struct contender *contender, struct worker *worker,
                 const struct aliquot_work_slice *work, struct aliquot_credit_slice *credit,
                 uint64_t now);
void turns_leave(struct contender *contender, struct worker *worker);

/* Look at the pages and give or take credit; when to look again at the latest. TURNS_NEVER: when
 * somebody rings, or something above changes. */
uint64_t turns_look(struct turns *turns, uint64_t now);

/* Quanta that a contender has asked for and that are not over; and whether its gates work. */
uint64_t turns_backlog(const struct contender *contender);
bool turns_is_gated(const struct contender *contender);

/* The wait for credit that this part of all waits stayed below, in seconds: 0.5 for the median. */
double turns_wait_quantile(const struct turns_figures *figures, double part);

#endif
