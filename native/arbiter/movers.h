/* The movers as the arbiter has them: connecting programs to them, and what they take.
 *
 * A GPU gets a mover when a swappable grant has a slice of it (mover_processes.h). The arbiter tells the
 * mover of each new connection whose it is, and of each program that has ended, and wants as much
 * memory of the host ahead of need as the programs of the GPU's swappable grants have had at most.
 *
 * A mover has a context on its GPU. What that takes counts as granted while there is a mover, or a
 * grant that will need one.
 */
#ifndef ARBITER_MOVERS_H
#define ARBITER_MOVERS_H

#include "json.h"

#include <stdbool.h>
#include <stdint.h>

struct aliquot_arena;
struct arbiter;
struct gpu;
struct mover_processes;
struct process;

struct movers {
	const struct mover_processes *processes;
	struct aliquot_arena *arenas; /* NULL: there are no movers, and `why_not` says why */
	char why_not[100];
};

void movers_open(struct movers *movers, const struct mover_processes *processes);

/* A connection of that process to the mover of a slice's GPU: a descriptor for the program, or -1 and the
 * reason. */
int movers_connect(const struct process *process, uint32_t slice, char why[static 100]);

/* The process or its program has ended: its copies are forgotten. */
void movers_forget(const struct process *process);

/* Grants have come or gone, or their programs have more than before: wants memory of the host for those
 * that are swappable. */
void movers_update(struct arbiter *arbiter);

/* What the mover of the GPU takes of it, or will take; 0: it has none and needs none. */
uint64_t movers_bytes(struct arbiter *arbiter, const struct gpu *gpu);
/* What a swappable grant adds to that if it is the first of the GPU. */
uint64_t movers_new_bytes(struct arbiter *arbiter, const struct gpu *gpu);

/* Whether that process is the mover of the GPU. */
bool movers_has_pid(struct arbiter *arbiter, const struct gpu *gpu, int32_t pid);

/* Writes `mover` of a GPU. */
void movers_write(struct arbiter *arbiter, const struct gpu *gpu, struct json *out);

#endif
