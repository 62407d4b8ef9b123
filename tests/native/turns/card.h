/* A GPU on paper, for the tests of the arbiter's turns: programs that queue quanta behind gates, one
 * engine that works on what has passed them, and a clock that only the test moves.
 *
 * Processes that have passed their gates at the same time share the engine in slices of a
 * millisecond, as a card does; to go from one to another takes as long as on an H200. */
#ifndef TEST_CARD_H
#define TEST_CARD_H

#include "turns.h"

#define CARD_PROGRAMS 16u
#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SEC UINT64_C(1000000000)

struct program {
	/* how it works */
	uint64_t quantum_ns;     /* of GPU time; varies by half around it */
	unsigned depth;          /* quanta it queues ahead of the GPU */
	unsigned burst;          /* after so many it waits for all of them ... */
	uint64_t think_ns;       /* ... and then does something else for this long */
	bool never_ends;         /* its next quantum */
	bool only_open;          /* it leaves its last quantum open, as one does that waits unseen */
	struct program *partner; /* on another GPU: each waits for the other to have begun the same */
	uint64_t idle_from, idle_until;
	/* what it is */
	struct contender *contender;
	struct worker worker;
	struct aliquot_credit_slice credit;
	struct aliquot_work_slice work;
	uint64_t left_ns; /* of the quantum at the engine; 0: none */
	unsigned in_burst;
	uint64_t thinks_until;
	uint64_t gpu_ns;                         /* what it had: the second witness */
	uint64_t asked_at, answers, answered_ns; /* bursts: asked for, done, and how long that took */
	bool stopped;
};

struct card {
	struct turns turns;
	struct program *programs[CARD_PROGRAMS];
	unsigned count;
	unsigned running; /* at the engine */
	uint64_t slice_until, switch_until;
	uint64_t now, look_at;
	uint64_t looks;
	unsigned seed;
};

void card_init(struct card *card, unsigned seed);
void card_add(struct card *card, struct program *program, struct contender *contender);
void card_run(struct card *card, uint64_t ns);
/* Two at the same time. */
void cards_run(struct card *one, struct card *other, uint64_t ns);

/* Part of the GPU time that a program had between two points, of all that was had. */
double card_part(const struct card *card, const struct program *program, const uint64_t *before);
void card_note(const struct card *card, uint64_t *gpu_ns);

#endif
