/* Private directories: the arbiter's own files of each grant, which no tenant can open by path.
 *
 *   RECORDS/NAME/record  the truth about the grant: what `limits` shows, in the same layout
 *   PAGES/NAME/credit.N  the credit page of one of its processes   (aliquot/credit.h)
 *   PAGES/NAME/work.N    the work page of the same process
 *
 * RECORDS is `private` in the state directory. PAGES is the same if that is in memory (tmpfs), and else
 * a directory below /dev/shm to which RECORDS/.pages leads: the driver pins these pages, and only
 * memory can be pinned. Being files, they outlive every process of the arbiter, and the next
 * arbiter maps them again.
 *
 * NAME is that of the grant's directory in grants/ or kept/.
 *
 * Guarantee: a directory here without one of that name in those two is a leftover.
 */
#ifndef ARBITER_PRIVATE_DIRECTORY_H
#define ARBITER_PRIVATE_DIRECTORY_H

#include "failure.h"

#include <limits.h>
#include <stdbool.h>

struct private_directory {
	char path[PATH_MAX];
	int fd;
};

/* Opens or makes the directory of records. */
bool private_directory_open(struct private_directory *private, const char *state_path,
                            struct failure *failure);
/* The same for pages. In /dev/shm it removes those of state directories that are gone. */
bool private_directory_open_in_memory(struct private_directory *pages,
                                      const struct private_directory *records,
                                      const char *state_path, struct failure *failure);

/* The directory of one grant, made if it is missing: its descriptor, or -errno. */
int private_directory_open_grant(const struct private_directory *private, const char *name);
/* Opens the gates of its processes and removes it. */
void private_directory_remove_grant(const struct private_directory *private, const char *name);

/* Opens the gates of all processes of all grants; returns the number of processes. */
unsigned private_directory_open_gates(const struct private_directory *private);

/* Removes the private directory if nothing is in it. */
void private_directory_close(struct private_directory *private);

/* Calls `each` for each grant that has a directory here. */
void private_directory_walk(const struct private_directory *private,
                            void (*each)(int directory, const char *name, void *context),
                            void *context);

#endif
