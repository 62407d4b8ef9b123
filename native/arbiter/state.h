/* The state directory: what the next arbiter finds after a restart.
 *
 *   DIR/arbiter.lock  locked (flock) while an arbiter runs     DIR/arbiter.pid  its parent's pid
 *   DIR/arbiter.log   the log, in the background (log.h)      DIR/boot         id of the last boot
 *   DIR/control       the control socket                       DIR/grants/NAME/ one grant each
 *   DIR/version       the version of all this                  DIR/private/     the arbiter's own files
 *   DIR/kept/NAME/    one kept grant each: those of containers
 *   DIR/contexts      what a context takes of the GPUs (context_sizes.h)
 *
 * A version is how the record of a grant and the pages of its processes are stored. Version 1 had no
 * private directory: `limits` was the record, and the pages were in the arbiter's parent alone. An
 * arbiter reads its own version and the one before, and then writes its own (state_set_version). It
 * refuses a later version and changes nothing. What a running program has mapped keeps its layout
 * (ALIQUOT_VERSION), whatever the version of the directory.
 *
 * Everybody can pass through grants/ and nobody but the arbiter's user can list it: a user's command
 * gets the path of its grant in the reply. Nobody else can pass through kept/: a container gets the
 * grant's own directory as a mount.
 *
 * Guarantees: a directory in the two whose name begins with a dot is incomplete and unused; every
 * other one is complete. Grants of an earlier boot are removed: none of their processes is alive.
 */
#ifndef ARBITER_STATE_H
#define ARBITER_STATE_H

#include "failure.h"
#include "private_directory.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

enum state_folder { STATE_GRANTS, STATE_KEPT };
#define STATE_FOLDERS 2

struct state {
	char path[PATH_MAX]; /* absolute */
	int directory, lock;
	int folders[STATE_FOLDERS]; /* by enum state_folder */
	struct private_directory records, pages;
	unsigned version; /* of what the directory had when it was opened */
};

#define STATE_VERSION 2u

/* "grants" or "kept". */
const char *state_folder_name(enum state_folder folder);

/* Creates the directory if it is missing, and takes the lock. The failure's code is "locked" if another
 * arbiter has it, "version" if a later version of Aliquot wrote it. */
bool state_open(struct state *state, const char *path, struct failure *failure);

/* Whether an arbiter of this version can use the directory; also if there is none yet. Changes
 * nothing. */
bool state_check_version(const char *path, struct failure *failure);

/* Writes a small file completely or not at all. 0, or -errno. */
int state_write_file(const struct state *state, const char *name, const char *text);

bool state_write_pid(struct state *state, pid_t pid, struct failure *failure);
void state_remove_pid(struct state *state);

/* From now on the directory is of this version: all grants have been recovered. */
bool state_set_version(struct state *state, struct failure *failure);

/* Removes incomplete directories of a killed arbiter, and the grants of an earlier boot. */
void state_clean(struct state *state);

/* Listens at `name` in a directory, replacing what was there. The descriptor, or -errno. */
int state_listen(int directory, const char *name, int type, mode_t mode);

/* Removes an incomplete directory, by its dotted name. */
void state_remove_incomplete(struct state *state, enum state_folder folder, const char *dotted);

/* Removes a directory of plain files. It is renamed to a dotted name first, so that it
 * disappears at once. */
void state_remove_directory(struct state *state, enum state_folder folder, const char *name);

#endif
