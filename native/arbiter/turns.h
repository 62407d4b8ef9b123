/* Turns: the decision which slice may use a GPU now, and nothing else.
 *
 * The model. Each slice that has processes on a GPU is a contender there, with a weight. One contender
 * is the holder: for a window in proportion to its weight its processes get credit a little ahead of
 * what they have done. Then it gets no more credit, turns.c waits until its GPU work is done (it
 * drains), and the next contender holds. The used time of a contender is the time it held the GPU,
 * including the drain. The contender with the least used time for its weight is next, so the windows
 * after an overrun make up for it. A contender without work loses the window, unless it usually has
 * new work at once. The others share its time by their weights. Unused time is not saved up.
 *
 * A contender that is alone has its gates open and is not observed. A `hard` contender is always
 * observed: its time is counted against the clock. A `latency` contender that has work and is within
 * its share starts at once, and the holder gets no more credit. A `background` contender holds the
 * GPU only if no other contender has work.
 *
 * There is no deadlock: a holder that does not drain within a bound is overdue, and the next contender
 * starts. Then the GPU's own time-slicing shares the GPU between them. That is a fallback; the figures
 * count it for the contender that was late. Time in which the arbiter could not look hardly counts.
 *
 * A contender whose grant is not active is excluded: its gates are open, and it is not observed, not
 * waited for and not charged. When its grant is active again it starts like one that had no work.
 *
 * A process that gates cannot hold (its self-test failed, or its work page is impossible) concerns its
 * own contender: that is charged for all of the time while others take turns, so its other processes
 * hold the GPU only if nobody else has work. The others are charged as if it were not there. It gets
 * no credit. When it has left, its contender owes nothing.
 *
 * Kernels of a group wait for one another. A group is the contenders of one grant on several GPUs, or
 * of several grants that are to run together. When one of them gets its window, the others are called
 * in on their GPUs. Those on the same GPU and of the same priority are its companions: they hold the
 * GPU at the same time, under the GPU's own time-slicing, in one window for the sum of their weights.
 * Their used time advances together, and each is charged its part of the time.
 *
 * Clients of one MPS server are a group on one GPU, whose kernels run at the same time (overlap.h). They
 * are companions, but those that are `hard` or were not measured yet; and no kernel of theirs waits for
 * another's. In their common window each gets credit by its progress.
 *
 * No clock, no system call, no lock: the caller passes the time and gets the time of the next look;
 * the pages are plain memory. Guarantee: whatever the work pages say, every contender with work that
 * is not in the background, not `hard` and out of tokens, and has only processes that gates can hold,
 * holds the GPU again within the sum of the others' windows and bounds, if the caller looks in time.
 */
#ifndef ARBITER_TURNS_H
#define ARBITER_TURNS_H

#include "aliquot/credit.h"

#include <stdbool.h>

#define TURNS_NEVER UINT64_MAX
#define TURNS_WAITS 160u /* buckets of waiting times: four for each doubling, from 1 microsecond */

struct turns;

/* The settings of a slice. */
struct turns_settings {
	uint32_t percent; /* 0: an equal part of what the others leave */
	enum aliquot_policy policy;
	enum aliquot_priority priority;
	enum aliquot_grant_state grant_state; /* the same for all slices of a grant */
	bool mps; /* the same for all of a group: they are clients of one MPS server */
};

/* Counters of a contender; they only grow. */
struct turns_figures {
	uint64_t used_ns;   /* time for which it held the GPU, and its processes were not stopped */
	uint64_t handovers; /* windows */
	uint64_t fallbacks; /* times it did not drain within the bound */
	uint64_t waits;     /* times it waited for credit */
	uint64_t waited_ns; /* sum of all waits */
	uint64_t waits_in[TURNS_WAITS];
};

/* One process of a contender. The caller owns the memory from turns_enter to turns_leave. */
struct worker {
	struct worker *next;
	const struct aliquot_work_slice *work;    /* read by turns_work.c alone */
	struct aliquot_credit_slice *credit_page; /* only written */
	struct aliquot_work_view view;            /* of its work page, at the last look */
	uint64_t credit;                          /* what it was given; so are these three words */
	uint32_t pace, ring, quantum_ns;
	uint32_t timed;    /* timings ever written */
	uint64_t passed;   /* the newest quantum that has started and is not closed yet */
	uint64_t moved_at; /* when its view, or its credit, last changed */
	uint64_t timed_at; /* the look up to which busy_ns counts; 0: it had no work */
	uint64_t busy_ns;
	uint64_t given; /* its credit as the holder; 0: it is not the holder */
	double stretch; /* factor by which it needs more credit than its estimates say */
	bool gated;     /* its gates work */
	bool pending;   /* it has unfinished work */
	bool stopped;   /* by a signal, as the caller says */
};

enum contender_state {
	CONTENDER_OUT,     /* gets no credit, or only what it may start with */
	CONTENDER_HOLDS,   /* gets credit */
	CONTENDER_DRAINS,  /* gets no more credit, and has not finished what it got */
	CONTENDER_OVERDUE, /* has drained for longer than the bound: the others run at the same time */
	CONTENDER_EXEMPT,  /* was overdue too often: its gates are open for a while */
};

/* Of a client of an MPS server, while it had the GPU for itself: the time, and what its quanta of that time
 * were estimated to take. Both fade. */
struct turns_sums {
	double took_ns, estimated_ns;
};

/* One slice on its GPU. The caller owns the memory from turns_add to turns_remove. */
struct contender {
	struct turns *turns;
	struct contender *next;
	struct contender *joint; /* ring of its group */
	uint64_t group;          /* the number of its group */
	struct turns_settings settings;
	struct worker *workers;
	struct turns_figures figures;
	enum contender_state state;
	bool pending;         /* one of its processes has work */
	bool active;          /* it has work, or had some within the last 50 ms */
	bool called;          /* its group holds another GPU and waits for this one */
	double used;          /* ns for each percent of its weight: the least is next */
	double weight;        /* in percent of the GPU; 0: its grant is parked */
	double tokens;        /* ns that `hard` may use, and `latency` may start at once with */
	bool spent;           /* the tokens ran out, and less than half have come back */
	uint64_t since;       /* when it entered this state */
	uint64_t window_ns;   /* length of its window */
	uint64_t in_hand_ns;  /* estimate of its unfinished work when it began to drain */
	uint64_t alone_at;    /* since when it drains without help of its group */
	uint64_t helped_done; /* quanta that it had done when it was late and last got help */
	unsigned helps;       /* given to it in a row while it was late and did none */
	uint64_t active_at;   /* when it last had work */
	uint64_t idle_at;     /* when it ran out of work; 0: it has some */
	uint64_t gap_ns;      /* how soon it usually has work again */
	uint64_t arrived_at;  /* when it last had work again after a pause */
	uint64_t period_ns;   /* between two such arrivals */
	unsigned regular;     /* arrivals in a row that came after that period */
	uint64_t waits_at;    /* since when it waits for credit; 0: it does not */
	uint64_t longest_ns;  /* the longest of its recent drains */
	uint64_t fallback_at; /* the last fallback */
	unsigned fallbacks_in_a_row;
	/* Of a client of an MPS server: */
	double progress; /* ns for each percent of its weight */
	double did_ns;   /* its progress since the last look */
	struct turns_sums measured_sums, newest_sums;
	uint64_t unfinished_ns; /* time that it has it for itself, since a quantum ended */
	bool finishes;          /* and one ended before that */
	uint64_t measured_ns;   /* such time in all */
	uint64_t measured_at;   /* when it last had the GPU for that */
};

/* One GPU. */
struct turns {
	struct contender *contenders;
	struct contender *excluded; /* those whose grant is not active */
	struct contender *holder;   /* its companions with work hold too; NULL: nobody holds */
	uint64_t looked_at;
	uint64_t round_ns;
	bool contended; /* contenders take turns */
	/* Of clients of MPS servers: */
	struct contender
		*measured;            /* has the GPU for itself, or is about to, to be measured; or NULL */
	uint64_t measure_at;      /* since when it is `measured`; or when the next one is */
	double passed_ns, did_ns; /* sums, fading: time in which several worked, and their progress */
};

void turns_init(struct turns *turns, uint64_t now);

/* `joint`: another contender of its group, on whatever GPU; NULL: there is none yet. */
void turns_add(struct turns *turns, struct contender *contender,
               const struct turns_settings *settings, struct contender *joint, uint64_t now);
void turns_remove(struct contender *contender);

/* New settings count from the next window, a new grant state at once. */
void turns_change(struct contender *contender, const struct turns_settings *settings, uint64_t now);

/* Adds or removes a process with its pages; when it is removed its gates are open. */
void turns_enter(struct contender *contender, struct worker *worker,
                 const struct aliquot_work_slice *work, struct aliquot_credit_slice *credit,
                 uint64_t now);
void turns_leave(struct contender *contender, struct worker *worker);

/* Says whether a signal has stopped the process. Time in which only stopped processes have work, and that
 * work does not move, is charged as ever, because a long kernel looks the same; but the figures give it
 * to the others on the GPU. */
void turns_set_stopped(struct worker *worker, bool stopped);

/* Reads the work pages and changes the credit. Returns when to look again at the latest; TURNS_NEVER:
 * when a process sends RING, or one of the calls above changes something. */
uint64_t turns_look(struct turns *turns, uint64_t now);

/* The number of unfinished quanta of a contender; whether its gates work. */
uint64_t turns_backlog(const struct contender *contender);
bool turns_is_gated(const struct contender *contender);

/* A quantile of the waits for credit, in seconds: part 0.5 is the median. */
double turns_wait_quantile(const struct turns_figures *figures, double part);

#endif
