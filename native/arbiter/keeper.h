/* The pages of all processes, kept by the arbiter's parent for when the arbiter dies.
 *
 * The arbiter (the child) hands each new pair (pair.h) to its parent before it seals it, and tells
 * it when the pair is dropped. When the child is dead the parent opens every gate at once: nobody's
 * work waits for an arbiter that is not there. The next child is a fork of the parent: it has the
 * mappings of all pairs from its birth, and finds the pair of a process by who the process is. No
 * tenant notices.
 *
 * They talk over a socketpair that each child gets anew, so nothing of a dead one is answered to
 * the next. The child waits for one answer alone, to a new pair, and at most a second: a parent
 * that is stopped costs newcomers their place and nobody else anything.
 *
 * Guarantee: a pair that a tenant can have is in the parent's list.
 */
#ifndef ARBITER_KEEPER_H
#define ARBITER_KEEPER_H

#include "pair.h"

/* Whose the pages are. A process has one grant and one slot; an exec gives it new pages, with a
 * higher number. */
struct keeping {
	char grant[ALIQUOT_NAME_SIZE];
	uint32_t slot;
	int32_t pid;
	uint64_t start_time;
};

struct kept {
	struct kept *next;
	uint64_t number; /* never used twice */
	struct keeping whose;
	struct pair pair;
	bool claimed; /* by a process that this child knows */
};

struct keeper {
	struct kept *all;
	struct kept *dropped; /* the child's: of these the parent has not been told */
	uint64_t last_number;
	int parent_end, child_end; /* -1: none */
};

void keeper_init(struct keeper *keeper);
/* Lets go of everything, as it stands. */
void keeper_close(struct keeper *keeper);

/* The parent's part. */

/* Before each start of a child: a new socketpair. 0, or -errno. */
int keeper_prepare(struct keeper *keeper);
/* After the fork. */
void keeper_be_parent(struct keeper *keeper);
/* Keeps and lets go of what the child says, all that waits at `parent_end`. */
void keeper_serve(struct keeper *keeper);
/* The child is dead: how many processes have their gates open now. */
unsigned keeper_open_gates(struct keeper *keeper);

/* The child's part. */

void keeper_be_child(struct keeper *keeper);
/* New pages, kept and sealed, with their descriptors. 0, or -errno. */
int keeper_make(struct keeper *keeper, const struct keeping *whose, uint32_t slices,
                struct kept **out, struct pair_fds *fds);
/* The newest pages of that process, or NULL; they are its from now on. */
struct kept *keeper_claim(struct keeper *keeper, const struct keeping *whose, uint32_t slices);
/* Their gates open, nobody uses them any more: the pointer is gone. */
void keeper_drop(struct keeper *keeper, struct kept *kept);
/* Drops what no process has claimed. */
void keeper_drop_unclaimed(struct keeper *keeper);

#endif
