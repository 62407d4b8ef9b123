/* Changing the slices of a grant while its programs run.
 *
 * A request is applied completely or not at all: all checks come first, and limits that were lowered
 * are restored if another cannot be. Memory changes at once, compute at the next window.
 *
 * Memory can grow into the free memory of the GPU. A parked grant only needs a GPU that is large
 * enough; free memory is checked when it leaves the parked state (grant_state.h). A memory limit
 * below what is in use is refused. With `gradual` it becomes what is in use now, so that memory which
 * the program frees leaves the grant, and the caller repeats the request. With `dry_run` everything is
 * checked and nothing changes.
 */
#ifndef ARBITER_RESIZE_H
#define ARBITER_RESIZE_H

#include "control_parse.h"
#include "grant.h"

struct resized {
	struct {
		uint64_t memory_bytes;  /* the limit now */
		bool reached;           /* it is the requested limit */
	} slices[ALIQUOT_MAX_GPUS]; /* in the order of the request */
};

/* `may_grow`: the caller may ask for more than a slice has now. */
bool resize_grant(struct grant *grant, const struct control_request *request, bool may_grow,
                  struct resized *out, struct failure *failure);

#endif
