/* Slices on the GPU on paper (card.h): programs with shares, and what each got. */
#ifndef TEST_SHARES_H
#define TEST_SHARES_H

#include "card.h"

#include "../check.h"

#include <math.h>

struct share {
	struct turns_settings settings;
	struct program program;
	struct contender contender;
};

extern struct card card;
extern struct share shares[2 * CARD_PROGRAMS];
/* What each had had, by the GPU and by the arbiter, when run_noted began. */
extern uint64_t before[CARD_PROGRAMS], used_before[CARD_PROGRAMS];

/* Keeps the GPU busy; waits for its work now and then; many small ones, each waited for. */
extern const struct program busy, syncs, small;
extern const struct program long_quanta;
/* Comes every 10 ms. */
extern const struct program request;

void begin(unsigned seed);
struct share *add_as(struct turns_settings settings, const struct program *how);
struct share *add(uint32_t percent, const struct program *how);
void run_noted(uint64_t ns);

/* Percent of the GPU time that was had since run_noted began; of all that passed. */
double got(unsigned i);
double busy_part(unsigned i, uint64_t ns);
/* The same by the arbiter's own stopwatch. */
double said(unsigned i);
uint64_t all_fallbacks(void);

#define NEAR(value, wanted, by)                                                                    \
	do {                                                                                           \
		double value_ = (value), wanted_ = (wanted);                                               \
		if (fabs(value_ - wanted_) > (by)) {                                                       \
			fprintf(stderr, "%s:%d: %s is %.3f, not %.3f\n", __FILE__, __LINE__, #value, value_,   \
			        wanted_);                                                                      \
			exit(1);                                                                               \
		}                                                                                          \
	} while (0)

#endif
