/* The reply to `status`: GPUs, grants and processes, as JSON.
 *
 * A user other than root and the arbiter's own sees of another user's grants whose they are, their
 * slices and what is used of them: no name, no directory, no process.
 */
#ifndef ARBITER_STATUS_H
#define ARBITER_STATUS_H

#include "arbiter.h"
#include "json.h"

/* `uid`: the caller's. */
void status_write(struct arbiter *arbiter, uint32_t uid, struct json *out);

#endif
