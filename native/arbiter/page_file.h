/* Files that are shared as pages: making them, and opening them for tenants that may only read them.
 *
 * A reader's descriptor is opened through a mount of our own that is read-only. So nobody can open it
 * again for writing through /proc/self/fd, not even root in a container. This takes Linux 5.12 and
 * CAP_SYS_ADMIN. Without them the descriptor is merely read-only: that holds every user but root and
 * the arbiter's own user. Nothing here could hold those two.
 */
#ifndef ARBITER_PAGE_FILE_H
#define ARBITER_PAGE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Makes a file with all its memory or disk space. Its descriptor for reading and writing, or -errno. */
int page_file_make(int directory, const char *name, size_t size, mode_t mode);

/* Takes back what a tenant added to a file of that size. True: the file had become longer. */
bool page_file_trim(int fd, size_t size);

/* A reader's descriptor, or -errno. */
int page_file_open_for_readers(int directory, const char *name);

/* False: such a mount could not be made, so readers' descriptors were merely read-only. */
bool page_file_protects(void);

#endif
