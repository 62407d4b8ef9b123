/* Grants: made on request, found again at a start, ended when nobody is left.
 *
 * A grant is a directory (state.h) with its two pages, its socket and its processes. Its owner is
 * the process that asked for it. It ends when the owner is dead and no process of it lives or is
 * ending.
 *
 * A kept grant has no owner: it is a container's, in which programs come and go, and it stays until
 * its end is asked for. From then on it takes nobody in, and ends with its last process. Whoever
 * reaches its socket may join it, under any uid: it is shown to that container alone.
 *
 * A grant is taken, open or parked (enum aliquot_hold); `limits` has it, so it outlives the arbiter.
 * Parked, it is a grant as ever but for its slices: nothing of them counts for anybody, and nobody
 * joins it.
 *
 * A grant whose files fail their check is broken: it takes no new process, its own are left alone,
 * and its memory stays counted if `limits` can be read.
 */
#ifndef ARBITER_GRANTS_H
#define ARBITER_GRANTS_H

#include "aliquot/layout.h"
#include "arbiter.h"
#include "control_parse.h"
#include "identity.h"
#include "pages.h"

#define GRANTS_MOST 1024u

struct process;

/* What the log has been told of (findings.h). */
struct findings {
	uint64_t fallbacks[ALIQUOT_MAX_GPUS], exemptions[ALIQUOT_MAX_GPUS];
	uint64_t fallback_at;
};

struct grant {
	struct arbiter *arbiter;
	struct grant *next;
	char name[ALIQUOT_NAME_SIZE];
	struct pages limits_pages, usage_pages;
	struct aliquot_limits *limits; /* NULL: cannot be read */
	struct aliquot_usage *usage;   /* NULL: cannot be trusted */
	int limits_fd, usage_fd;       /* for tenants: read-only, read-write */
	uint32_t slice_count;
	struct gpu *gpus[ALIQUOT_MAX_GPUS]; /* NULL: this machine has it no more */
	struct watch listener;
	unsigned connection_count;
	struct watch owner; /* its pidfd; -1: it is dead, or the grant is kept */
	struct process *processes[ALIQUOT_MAX_PROCESSES]; /* by slot */
	uint32_t process_end;                             /* one past the last used slot */
	uint32_t process_count;
	struct credit_grant *credit; /* its slices as contenders; NULL: `limits` cannot be read */
	struct findings findings;
	char broken[160]; /* why; empty: sound */
};

/* Takes owner->pidfd in either case. NULL and why not. For a grant that is to be kept `owner` has a
 * uid alone (pid 0, pidfd -1). */
struct grant *grants_make(struct arbiter *arbiter, const struct control_request *request,
                          const struct identity *owner, struct failure *failure);

/* A kept grant takes nobody in any more. *left: processes that are still in it; with none it is gone,
 * as it is where there was no such grant. One that cannot be read goes at once. */
bool grants_end(struct arbiter *arbiter, const char *name, uint32_t *left, struct failure *failure);

/* What it lives by; one that cannot be read has an owner for all we know. */
enum aliquot_life grants_life(const struct grant *grant);

/* Taken, where it cannot be read: it counts for all we know. */
enum aliquot_hold grants_hold(const struct grant *grant);
/* The words for that, as requests and answers have them. */
const char *grants_hold_word(enum aliquot_hold hold);

/* NULL: there is none of that name. */
struct grant *grants_find(struct arbiter *arbiter, const char *name);
/* The same for a peer of that uid who would change it. NULL: it may not, or it cannot be. */
struct grant *grants_find_to_change(struct arbiter *arbiter, const char *name, uint32_t uid,
                                    struct failure *failure);

/* All grants of the state directory. */
bool grants_recover(struct arbiter *arbiter, struct failure *failure);

/* Closes everything and leaves the files: a later arbiter goes on from them. */
void grants_close_all(struct arbiter *arbiter);

/* Ends the grant if nobody is left in it. */
void grants_consider(struct grant *grant);

/* Lets go of broken grants whose directory a person has removed. */
void grants_drop_removed(struct arbiter *arbiter);

/* Checks the pages that others can touch; false: the grant is broken. */
bool grants_check(struct grant *grant);

/* Bytes of that GPU in the limits of all grants that are not parked. */
uint64_t grants_granted_bytes(struct arbiter *arbiter, const struct gpu *gpu);

/* How many grants somebody may still be in. */
unsigned grants_held(struct arbiter *arbiter);

/* Starts or stops the wait for the arbiter's end. */
void grants_linger(struct arbiter *arbiter);

/* For good: the first reason stays. `part` names the file. */
void grants_break(struct grant *grant, const char *part, const char *why);

#endif
