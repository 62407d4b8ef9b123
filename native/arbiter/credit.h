/* Credit given: the one thread that looks at the pages, and who takes part.
 *
 * turns.h decides; this thread calls it with the time, and sleeps until it must look again, for
 * ever when nobody contends. It is woken when somebody comes or goes, when a process rings, and
 * twice a second while processes live, because a ring may have been lost.
 *
 * The main thread owns grants and processes, and adds and removes them here; the lock is held for
 * moments, and never across a call to anyone else. The thread touches memory alone: no file, no
 * log, no NVML.
 *
 * Guarantee: a process that is removed, or whose grant is not taken, has its gates open.
 */
#ifndef ARBITER_CREDIT_H
#define ARBITER_CREDIT_H

#include "recent.h"
#include "turns.h"

#include <pthread.h>

struct grant;
struct process;

struct credit {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	bool running, stopping, woken;
	struct turns *gpus; /* in NVML's order */
	unsigned gpu_count;
	struct credit_grant *grants;
};

/* One slice as others see it. */
struct credit_figures {
	enum contender_state state;
	bool active, contended;
	double weight; /* in percent of the GPU */
	struct turns_figures turns;
	struct recent_held held;
	uint64_t backlog;    /* quanta */
	uint64_t exemptions; /* times its gates were left open for a while */
	int32_t culprit;     /* the process that was late at the newest fallback; 0: unknown */
};

/* Starts the thread. 0, or -errno. */
int credit_start(struct credit *credit, unsigned gpu_count);
/* Ends the thread, if it was started. */
void credit_stop(struct credit *credit);
/* When all grants are removed. */
void credit_free(struct credit *credit);

/* The thread looks at once; or the caller does, so that what it reads is of now. */
void credit_wake(struct credit *credit);
void credit_look(struct credit *credit);

/* A grant's slices as contenders, with the settings of its limits, which may change. 0, or
 * -errno. */
int credit_add_grant(struct grant *grant);
void credit_change_grant(struct grant *grant);
void credit_remove_grant(struct grant *grant);

/* With its pages. 0, or -errno. */
int credit_add_process(struct process *process);
void credit_remove_process(struct process *process);

void credit_read(struct grant *grant, uint32_t slice, struct credit_figures *out);
/* Whether turns are taken on that GPU, by its place among NVML's. */
bool credit_is_contended(struct credit *credit, unsigned gpu);
/* The thread's own. */
uint64_t credit_cpu_ns(const struct credit *credit);

#endif
