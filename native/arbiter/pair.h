/* The two pages of one process, credit and work (aliquot/credit.h), as the arbiter has them.
 *
 * They are memfds, allocated in full. The arbiter makes them and maps them, its parent maps them
 * too (keeper.h), and then they are sealed: from then on nobody can map `credit` writable or write
 * it, and nobody can shorten either: to read what a tenant can write never raises SIGBUS.
 *
 * `work` is a tenant's word: whoever reads it does so in bounded steps.
 */
#ifndef ARBITER_PAIR_H
#define ARBITER_PAIR_H

#include "aliquot/credit.h"
#include "failure.h"

#include <stdbool.h>

struct pair {
	struct aliquot_credit *credit; /* NULL: there is none */
	const struct aliquot_work_slice *work;
	uint32_t slices;
};

/* Their descriptors, in the order in which WELCOME carries them. */
struct pair_fds {
	int credit, work;
};

/* Made, filled, and with every gate open; not sealed. 0, or -errno. */
int pair_make(uint32_t slices, struct pair_fds *fds);
void pair_close(const struct pair_fds *fds);

/* Before the seal. 0, or -errno. */
int pair_map(const struct pair_fds *fds, uint32_t slices, struct pair *out);
void pair_unmap(struct pair *pair);

/* 0, or -errno. */
int pair_seal(const struct pair_fds *fds);

/* Every gate stands open, and nobody rings or closes a quantum early. */
void pair_open_gates(const struct pair *pair);

/* Whether this kernel can do all of it. */
bool pair_try(struct failure *failure);

#endif
