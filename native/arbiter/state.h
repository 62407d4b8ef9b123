/* The state directory: what an arbiter that starts again finds.
 *
 *   DIR/arbiter.lock  held (flock) while an arbiter lives      DIR/arbiter.pid  its parent's pid
 *   DIR/arbiter.log   when in the background                   DIR/boot         the boot it is of
 *   DIR/control       the control socket                       DIR/grants/NAME/ one grant each
 *
 * Guarantees: a directory in grants/ whose name begins with a dot is half made or half removed and
 * belongs to nobody; everything else in it is whole. Grants of an earlier boot are no grants: none
 * of their processes lives.
 */
#ifndef ARBITER_STATE_H
#define ARBITER_STATE_H

#include "failure.h"

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

struct state {
	char path[PATH_MAX]; /* absolute */
	int directory, grants, lock;
};

/* Makes the directory if it is missing and takes the lock; the code is "locked" if another arbiter
 * has it. */
bool state_open(struct state *state, const char *path, struct failure *failure);

bool state_write_pid(struct state *state, pid_t pid, struct failure *failure);
void state_remove_pid(struct state *state);

/* The log's descriptor, or -errno. */
int state_open_log(struct state *state);

/* Clears what a killed arbiter left half done, and the grants of an earlier boot. */
void state_clean(struct state *state);

/* Listens at `name` in a directory, in place of what was there. The descriptor, or -errno. */
int state_listen(int directory, const char *name, int type, mode_t mode);

/* Removes a directory in grants/ that is half made or half removed, by its dotted name. */
void state_remove_half(struct state *state, const char *dotted);

/* Removes a directory of plain files in grants/: under a dotted name first, so that it is gone at
 * once. */
void state_remove_directory(struct state *state, const char *name);

#endif
