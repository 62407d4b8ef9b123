/* The files of one grant: limits, usage, socket.
 *
 * Made in full under a dotted name and renamed when whole; allocated in full, so that a full disk
 * is an error here and never a SIGBUS in a tenant.
 */
#ifndef ARBITER_GRANT_FILES_H
#define ARBITER_GRANT_FILES_H

#include "grants.h"

/* Makes the directory and opens all of it into `grant` (name, slice_count and gpus are set). The
 * listening socket goes to *listener. */
bool grant_files_make(struct grant *grant, const struct control_request *request,
                      const struct identity *owner, int *listener, struct failure *failure);

/* Opens what is there; what is wrong with a file breaks the grant. 0, or -errno: there is no such
 * directory. *listener may be -1. */
int grant_files_open(struct grant *grant, int *listener);

/* Unmaps and closes; the files stay. */
void grant_files_close(struct grant *grant);

#endif
