/* The arbiter proper: everything it knows, and the loop it lives in.
 *
 * Nothing here survives it: what must is in the state directory (state.h, aliquot/layout.h) and in
 * its parent's hands (keeper.h), and a new arbiter finds it there. It may be killed between any two
 * lines.
 *
 * Two threads: the main one lives in the loop and owns everything; the other gives credit
 * (credit.h) and owns nothing.
 */
#ifndef ARBITER_ARBITER_H
#define ARBITER_ARBITER_H

#include "credit.h"
#include "failure.h"
#include "loop.h"
#include "nvml.h"
#include "state.h"

#include <stdatomic.h>

struct arbiter {
	struct loop loop;
	struct state *state;
	struct nvml nvml;
	struct credit credit;
	struct keeper *keeper;
	uint64_t linger_ns; /* 0: for ever */

	struct grant *grants;
	unsigned grant_count;
	struct timer linger;

	unsigned live_count, ending_count; /* processes of all grants */
	struct timer ending, measure;

	struct connection *connections;
	unsigned control_count, tenant_count; /* of them */
	bool paused;                          /* no new connections for now */
	struct timer resume;

	struct watch control, signals;
};

/* What the parent must know of a child's start; in memory they share. */
struct birth {
	atomic_int ready; /* once: it listened */
	char error[512];  /* why it did not come so far */
};

struct keeper;
struct options;

/* Lives until SIGTERM, `stop` or the linger is over; 0, or why not as an exit code. `announce` gets
 * "ready" the first time it listens. Every gate is open when it returns. */
int arbiter_run(const struct options *options, struct state *state, struct birth *birth,
                struct keeper *keeper, int announce);

#endif
