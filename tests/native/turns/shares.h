/* Slices on the simulated GPU (simulated_gpu.h): programs with shares, and what each got. */
#ifndef TEST_SHARES_H
#define TEST_SHARES_H

#include "simulated_gpu.h"

#include "../check.h"

#include <math.h>

struct share {
	struct turns_settings settings;
	struct program program;
	struct contender contender;
};

extern struct simulated_gpu gpu;
extern struct share shares[2 * GPU_PROGRAMS];
/* What each had used when run_noted began, by the GPU and by the arbiter. */
extern uint64_t before[GPU_PROGRAMS], used_before[GPU_PROGRAMS];

/* One keeps the GPU busy; one waits for its work now and then; one has many small quanta. */
extern const struct program busy, syncs, small;
extern const struct program long_quanta;
/* Comes every 10 ms. */
extern const struct program request;

void begin_test(unsigned seed);
struct share *add_share_as(struct turns_settings settings, const struct program *how);
struct share *add_share(uint32_t percent, const struct program *how);
void run_noted(uint64_t ns);

/* Percent of the used GPU time since run_noted began; percent of all time. */
double got(unsigned i);
double busy_part(unsigned i, uint64_t ns);
/* The same as the arbiter counts it. */
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
