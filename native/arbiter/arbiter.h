/* The arbiter process: all its state in memory, and its event loop.
 *
 * Nothing here outlives it. What must is in files (state.h, private_directory.h); the next arbiter
 * finds it there. The arbiter may be killed between any two instructions.
 *
 * Three threads: the main thread runs the loop and owns everything; one gives credit (credit.h) and
 * one asks NVML (observer.h), and they own nothing.
 */
#ifndef ARBITER_ARBITER_H
#define ARBITER_ARBITER_H

#include "callers.h"
#include "credit.h"
#include "failure.h"
#include "loop.h"
#include "movers.h"
#include "nvml.h"
#include "observer.h"
#include "state.h"
#include "supervision.h"
#include "users.h"

#define WANTS_MOST 16u

/* Room on a GPU that somebody waits for (wants.h). */
struct want {
	const struct gpu *gpu;
	uint64_t bytes;
	uint32_t percent;
	uint64_t until;
};

struct arbiter {
	struct loop loop;
	struct state *state;
	struct nvml nvml;
	struct observer observer;
	struct credit credit;
	struct supervision *supervision;
	struct users users;
	struct movers movers;
	uint64_t linger_ns; /* 0: never ends by itself */
	bool foreground;

	bool pool_admits;   /* see options.h */
	bool ends_unjoined; /* processes in a grant's cgroup that have not joined are killed */
	struct unjoined *unjoined;
	struct timer confirm; /* unjoined.h's */

	struct grant *grants;
	unsigned grant_count;
	struct timer linger;

	unsigned live_count, ending_count; /* processes of all grants */
	struct timer cleanup, measure, parking;
	const char *mps;              /* which GPUs allow MPS (mps.h) */
	unsigned overcommit_percent;  /* of a GPU's memory that swappable slices may ask for together */
	uint64_t rotated_at;          /* rotation.h's: its last look */
	double moving[NVML_MAX_GPUS]; /* the part of the last minute in which memory moved for turns */
	bool
		returns; /* parking.h's: a parked grant returns now; others that wait for that do not count */

	struct want wants[WANTS_MOST];

	struct connection *connections;
	unsigned control_count, tenant_count; /* of the connections */
	struct callers callers;
	bool paused; /* no new connections for now */
	struct timer resume;
	struct timer ring; /* a RING waits for it, since another came just before */
	uint64_t rang_ns;  /* when the credit thread was woken by the last one */
	/* Handles what a tenant's connection receives (tenants.h). */
	void (*tenant_ready)(struct watch *watch, uint32_t events);

	struct watch control, signals;
	struct watch asked; /* the parent asks for progress */
};

struct options;

/* Runs until SIGTERM, `stop` or the end of the linger time. Returns an exit code, 0 for success.
 * Writes "ready" to `announce` the first time it listens. `asked` is the eventfd at which its parent
 * asks for progress. All gates are open when it returns. */
int arbiter_run(const struct options *options, struct state *state, struct supervision *supervision,
                const struct mover_processes *movers, int asked, int announce);

#endif
