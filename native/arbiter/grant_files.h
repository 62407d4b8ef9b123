/* The files of one grant: limits, usage, socket.
 *
 * They are made under a name that begins with a dot and renamed when complete. All space is allocated
 * at once, so that a full disk is an error here and never a SIGBUS in a tenant.
 */
#ifndef ARBITER_GRANT_FILES_H
#define ARBITER_GRANT_FILES_H

#include "control_parse.h"
#include "grant.h"
#include "identity.h"

/* Makes the directory and opens its files into `grant`, whose name, slice_count and gpus are set.
 * *listener: the listening socket. */
bool grant_files_make(struct grant *grant, const struct control_request *request,
                      const struct identity *owner, int *listener, struct failure *failure);

/* Opens the files of an existing grant; a damaged file breaks the grant. 0, or -errno: there is no
 * such directory. *listener may be -1. */
int grant_files_open(struct grant *grant, int *listener);

/* Unmaps and closes; the files stay. */
void grant_files_close(struct grant *grant);

#endif
