/* The movers as the arbiter's parent has them: their files, and starting them.
 *
 * A mover (aliquot/move.h) copies memory between one GPU and the host. The parent makes the files of the
 * arenas and the socket pairs for orders (aliquot/arena.h) before it starts any process, so that all
 * three processes hold them. It starts a GPU's mover when there is an order for it and none runs, so
 * an order is all that the arbiter sends, and an order that a dying mover did not read starts the next.
 *
 * A mover ends with the parent that started it, and not with the arbiter. One that dies while there is
 * memory of the host, or memory is wanted, is started again at once. If ten died within ten seconds, two hung
 * and copied nothing in between, or none can be started, its orders are dropped for ten seconds: programs that
 * wait for it see their connections closed, and those that ask for it are refused.
 *
 * A mover hangs if it does not count up `beats` in its arena, which it does twice a second unless one of its
 * threads makes no progress (mover/watch.h). Then it is killed. The parent counts its own looks, not the time.
 */
#ifndef ARBITER_MOVER_PROCESSES_H
#define ARBITER_MOVER_PROCESSES_H

#include "options.h"
#include "supervision.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/types.h>

#define MOVER_DEATHS_MOST 10
#define MOVER_LOOK_SECONDS 2

struct mover_process {
	int data;                /* the file with the bytes */
	int orders[2];           /* the arbiter's end and the mover's */
	pid_t pid;               /* a child of this process; 0: none */
	uint64_t beats;          /* at the last look */
	uint64_t copied_at_hang; /* bytes, when it last hung */
	unsigned hangs;          /* since it has copied anything */
	uint64_t deaths[MOVER_DEATHS_MOST];
	unsigned death_count;
};

struct mover_processes {
	bool exist; /* false: there are no movers, and `why_not` says why */
	char why_not[100];
	const char *cuda;    /* the path of the driver's libcuda */
	uint64_t most_bytes; /* of the host's memory, for all GPUs together */
	int program;         /* aliquot-mover */
	int arenas;
	struct aliquot_arena *pages; /* the same, mapped; the arbiter's and the guard's too */
	struct supervision *supervision;
	struct mover_process all[ALIQUOT_MOVERS];
};

/* Makes the files, if the options name the driver. */
void mover_processes_prepare(struct mover_processes *movers, const struct options *options,
                             struct supervision *supervision);

/* This process is the parent now. Waits until movers of an earlier parent are gone. */
void mover_processes_take_over(struct mover_processes *movers);

/* What to wait for: fills `pollers` and returns their number. */
unsigned mover_processes_watch(struct mover_processes *movers,
                               struct pollfd pollers[static ALIQUOT_MOVERS]);
/* Starts the movers for which there are orders. */
void mover_processes_start(struct mover_processes *movers, const struct pollfd *pollers,
                           unsigned count);
/* Notices those that have ended. */
void mover_processes_reap(struct mover_processes *movers);
/* Kills those that hang. To be called every MOVER_LOOK_SECONDS. */
void mover_processes_look(struct mover_processes *movers);
void mover_processes_end(struct mover_processes *movers);

#endif
