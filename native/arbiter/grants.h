/* The set of grants: creating them on request, recovering them at a start, ending them.
 *
 * grant.h says what a grant is.
 */
#ifndef ARBITER_GRANTS_H
#define ARBITER_GRANTS_H

#include "control_parse.h"
#include "grant.h"
#include "identity.h"

#define GRANTS_MOST 1024u
/* Of these, those that only root and the arbiter's user can make. */
#define GRANTS_RESERVED 256u

/* Creates a grant; NULL and `failure` if it cannot. Takes ownership of owner->pidfd in either case.
 * For a kept grant `owner` has a uid alone (pid 0, pidfd -1), or is the process with which it ends. */
struct grant *grants_make(struct arbiter *arbiter, const struct control_request *request,
                          const struct identity *owner, struct failure *failure);

/* Whether that process owns the grant and lives. */
bool grants_is_owned_by(const struct grant *grant, int32_t pid);

/* Ends a grant: from now on no process can join it. *left: processes that are still in it. With none the
 * grant is gone. Only its owner (`for_owner`) can end a grant that is not kept. A grant that cannot be
 * read is removed at once. */
bool grants_end(struct grant *grant, bool for_owner, uint32_t *left, struct failure *failure);

/* Recovers all grants of the state directory. */
bool grants_recover(struct arbiter *arbiter, struct failure *failure);

/* Closes everything and leaves the files: a later arbiter recovers them. */
void grants_close_all(struct arbiter *arbiter);

/* Drops broken grants whose directory somebody has removed. */
void grants_drop_removed(struct arbiter *arbiter);

/* How many grants can be read, and so may have processes. */
unsigned grants_count_readable(struct arbiter *arbiter);

/* Whether a grant has a slice of the GPU. */
bool grants_use_gpu(const struct arbiter *arbiter, const struct gpu *gpu);

/* Starts or stops the timer after which an arbiter without grants ends. */
void grants_linger(struct arbiter *arbiter);

#endif
