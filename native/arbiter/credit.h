/* Giving credit: the thread that reads the work pages and writes the credit pages.
 *
 * turns.h decides. This thread calls it with the time, then sleeps until the next look is due, or
 * without limit if nobody contends. The main thread wakes it when a grant or process is added or
 * removed, when a process sends RING, and twice a second while processes are live, because a RING
 * may have been lost.
 *
 * The main thread owns grants and processes, and adds and removes them here. The lock is held only
 * briefly, and never across a call into another module but turns.h. The thread touches memory only: no
 * file, no log, no NVML.
 *
 * Guarantee: a process that is removed, or whose grant is not active, has its gates open.
 */
#ifndef ARBITER_CREDIT_H
#define ARBITER_CREDIT_H

#include "recent_usage.h"
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
	_Atomic uint64_t *looks; /* counts them for the parent, which sees that the thread runs */
};

/* The figures of one slice. */
struct credit_figures {
	enum contender_state state;
	bool active, contended;
	double weight; /* in percent of the GPU */
	struct turns_figures turns;
	struct recent_figures usage;
	/* Since when its programs have launched nothing and had no unfinished work; at most since this arbiter
	 * started, the grant became active or a program came or went. Copies alone are not seen, nor is a kernel
	 * that runs on while its program neither launches nor waits, nor what gates cannot hold. */
	uint64_t idle_ns;
	uint64_t backlog;    /* quanta */
	uint64_t exemptions; /* times it was exempt from turns for a while */
	int32_t late_pid;    /* the process that was late at the newest fallback; 0: unknown */
	/* FAIL or INVALID if one of its processes is so, and then why: a CUDA error code. */
	enum aliquot_gates gates;
	uint32_t why;
};

/* Starts the thread, which counts its looks in *looks. 0, or -errno. */
int credit_start(struct credit *credit, unsigned gpu_count, _Atomic uint64_t *looks);
/* There are so many GPUs now; never fewer than before. */
void credit_set_gpus(struct credit *credit, unsigned gpu_count);
/* Ends the thread, if it was started. */
void credit_stop(struct credit *credit);
/* After all grants are removed. */
void credit_free(struct credit *credit);

/* Makes the thread look at once; or looks in the calling thread, so that credit_read is up to date. */
void credit_wake(struct credit *credit);
void credit_look(struct credit *credit);

/* Makes the grant's slices contenders, with the settings in its limits; _change reads those again. They
 * are one group with those of its owner's grants that have the same `together` name. 0, or -errno. */
int credit_add_grant(struct grant *grant);
void credit_change_grant(struct grant *grant);
void credit_remove_grant(struct grant *grant);

/* The process must have its pages. 0, or -errno. */
int credit_add_process(struct process *process);
void credit_remove_process(struct process *process);

/* Says whether a signal has stopped the process, for the figures (turns.h). */
void credit_set_stopped(struct process *process, bool stopped);

void credit_read(struct grant *grant, uint32_t slice, struct credit_figures *out);
/* A program that has not joined uses the slice, or did until now: it was not idle. */
void credit_note_unseen(struct grant *grant, uint32_t slice);
/* Whether all work of the slice is seen: otherwise idle_ns of its figures means nothing. */
bool credit_sees_all(const struct grant *grant, uint32_t slice,
                     const struct credit_figures *figures);
/* Whether gates work for a process in a slice; *why: the CUDA error code if they fail. */
enum aliquot_gates credit_gates(const struct process *process, uint32_t slice, uint32_t *why);
/* Whether slices take turns on that GPU (its place in nvml.gpus). */
bool credit_is_contended(struct credit *credit, unsigned gpu);
/* Processor time of the thread. */
uint64_t credit_cpu_ns(const struct credit *credit);

#endif
