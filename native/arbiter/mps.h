/* Grants whose programs are clients of an MPS server of NVIDIA's, which runs the kernels of several
 * processes at the same time.
 *
 * The arbiter starts no server: a watcher does, a process of the grant's user (slices/mps_watcher.py). There
 * is one server for each GPU and user, so programs of different users never share one. The arbiter knows
 * which grants are for clients, and this is all that depends on it: the driver can neither freeze such a
 * program nor move its memory, so the grant stays active; and what its contexts take is not taken for
 * what other programs' contexts take.
 *
 * Which GPUs allow it is a policy of who starts the arbiter: "all", "none", or UUIDs separated by commas.
 */
#ifndef ARBITER_MPS_H
#define ARBITER_MPS_H

#include "failure.h"
#include "json.h"

#include <stdbool.h>

struct arbiter;
struct control_request;
struct gpu;
struct grant;

bool mps_is_policy(const char *text);

/* Whether that policy allows it on the GPU. NULL: all. */
bool mps_is_allowed(const char *policy, const uint8_t uuid[16]);

/* Whether slices of one server overlap (turns_overlap.c): an experiment, which ALIQUOT_MPS_OVERLAP=1 in the
 * arbiter's environment begins. Otherwise they take turns as soft slices do. */
bool mps_overlaps(void);

/* Whether a new grant may have its slice of this GPU; false and `failure` if not. */
bool mps_check(const struct arbiter *arbiter, const struct gpu *gpu,
               const struct control_request *request, struct failure *failure);

/* Whether the grant may be switching or parked; false and `failure` if not. */
bool mps_may_leave(const struct grant *grant, struct failure *failure);

/*   isolation  "soft" or "mps" */
void mps_write(const struct grant *grant, struct json *out);

#endif
