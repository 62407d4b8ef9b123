/* The files of one grant: its record, `limits`, `usage` and the socket.
 *
 * The record is in the private directory and made first. The others are made in grants/ under a name
 * that begins with a dot and renamed when complete: from then on there is a grant. All space is
 * allocated at once, so that a full disk is an error here and never a SIGBUS in a tenant.
 */
#ifndef ARBITER_GRANT_FILES_H
#define ARBITER_GRANT_FILES_H

#include "control_parse.h"
#include "grant.h"
#include "identity.h"

/* The number of pages that were lost with an arbiter of version 1 (state.h). */
#define GRANT_FILES_LOST_PAGES UINT32_MAX

/* Makes the directories and opens the files into `grant`, whose name, folder, directory, slice_count
 * and gpus are set.
 * *listener: the listening socket. */
bool grant_files_make(struct grant *grant, const struct control_request *request,
                      const struct identity *owner, int *listener, struct failure *failure);

/* Opens the files of an existing grant, of which folder and directory are set, and shows the record in
 * `limits`; a damaged file breaks the grant. In a state directory of version 1 `limits` becomes the
 * record. 0, or -errno: there is no such directory. *listener may be -1. */
int grant_files_open(struct grant *grant, int *listener);

/* Unmaps and closes; the files stay. */
void grant_files_close(struct grant *grant);

/* Removes all its files. */
void grant_files_remove(const struct grant *grant);
/* Removes what a grant with a directory of that name has in private directories. */
void grant_files_remove_private(struct state *state, const char *directory);

#endif
