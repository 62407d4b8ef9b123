#include "private_directory.h"

#include "directory.h"
#include "log.h"
#include "process_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TMPFS 0x01021994
#define SHARED_MEMORY "/dev/shm"
#define PREFIX "aliquot-%u-"
#define OWNER ".state" /* in the directory of pages: a link to the state directory */
#define LINK ".pages"  /* in the directory of records: a link to that of pages */

static bool is_in_memory(int directory)
{
	struct statfs status;
	return !fstatfs(directory, &status) && status.f_type == TMPFS;
}

int private_directory_open_grant(const struct private_directory *private, const char *name)
{
	int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int fd = openat(private->fd, name, flags);
	if (fd < 0 && errno == ENOENT && !mkdirat(private->fd, name, 0700))
		fd = openat(private->fd, name, flags);
	return fd < 0 ? -errno : fd;
}

void private_directory_remove_grant(const struct private_directory *private, const char *name)
{
	int fd = openat(private->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return;
	process_pages_open_gates_of(fd);
	close(fd);
	directory_remove_files(private->fd, name);
	if (unlinkat(private->fd, name, AT_REMOVEDIR))
		log_event("%s/%s cannot be removed: %s", private->path, name, strerror(errno));
}

struct visit {
	void (*each)(int directory, const char *name, void *context);
	void *context;
};

static void visit_grant(int directory, const char *name, void *context)
{
	const struct visit *visit = context;
	if (name[0] != '.')
		visit->each(directory, name, visit->context);
}

void private_directory_walk(const struct private_directory *private,
                            void (*each)(int directory, const char *name, void *context),
                            void *context)
{
	struct visit visit = {.each = each, .context = context};
	directory_walk(private->fd, ".", visit_grant, &visit);
}

static void open_gates(int directory, const char *name, void *context)
{
	int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return;
	*(unsigned *)context += process_pages_open_gates_of(fd);
	close(fd);
}

unsigned private_directory_open_gates(const struct private_directory *private)
{
	unsigned count = 0;
	private_directory_walk(private, open_gates, &count);
	return count;
}

static void remove_grant(int directory, const char *name, void *context)
{
	(void)directory;
	private_directory_remove_grant(context, name);
}

/* Opens the directory for this user alone. False: errno says why. */
static bool open_path(struct private_directory *private)
{
	struct stat status;
	private->fd = open(private->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (private->fd < 0 || fstat(private->fd, &status))
		return false;
	errno = EPERM;
	return status.st_uid == geteuid() && !(status.st_mode & 077);
}

/* Removes a directory of this user in shared memory whose state directory is gone, unless an arbiter
 * uses it: that one may see other paths than we do. */
static void remove_abandoned(int directory, const char *name, void *context)
{
	char prefix[32], state_path[PATH_MAX];
	struct private_directory old;
	(void)context;
	snprintf(prefix, sizeof(prefix), PREFIX, (unsigned)geteuid());
	if (strncmp(name, prefix, strlen(prefix)) || strlen(name) > NAME_MAX)
		return;
	snprintf(old.path, sizeof(old.path), SHARED_MEMORY "/%s", name);
	if (!open_path(&old)) {
		if (old.fd >= 0)
			close(old.fd);
		return;
	}
	ssize_t used = readlinkat(old.fd, OWNER, state_path, sizeof(state_path) - 1);
	state_path[used > 0 ? used : 0] = 0;
	if (used > 0 && access(state_path, F_OK) && errno == ENOENT &&
	    !flock(old.fd, LOCK_EX | LOCK_NB)) {
		private_directory_walk(&old, remove_grant, &old);
		unlinkat(old.fd, OWNER, 0);
		unlinkat(directory, name, AT_REMOVEDIR);
	}
	close(old.fd);
}

static bool make_and_open(struct private_directory *private, struct failure *failure)
{
	private->fd = -1;
	if ((mkdir(private->path, 0700) && errno != EEXIST) || !open_path(private))
		return failure_set(failure, "state", "%s cannot be used: %s", private->path,
		                   strerror(errno));
	return true;
}

bool private_directory_open(struct private_directory *private, const char *state_path,
                            struct failure *failure)
{
	snprintf(private->path, sizeof(private->path), "%.*s/private", PATH_MAX - 16, state_path);
	return make_and_open(private, failure);
}

/* Follows the link to the directory of pages; false: there is none that is ours. */
static bool follow_link(struct private_directory *pages, const struct private_directory *records)
{
	ssize_t used = readlinkat(records->fd, LINK, pages->path, sizeof(pages->path) - 1);
	pages->path[used > 0 ? used : 0] = 0;
	if (strncmp(pages->path, SHARED_MEMORY "/", strlen(SHARED_MEMORY) + 1))
		return false;
	if (open_path(pages))
		return true;
	if (pages->fd >= 0)
		close(pages->fd);
	return false;
}

/* Its name is chance, so that no other user can take it beforehand; a link leads to it. 0, or -errno. */
static int make_linked(struct private_directory *pages, const struct private_directory *records,
                       const char *state_path)
{
	snprintf(pages->path, sizeof(pages->path), SHARED_MEMORY "/" PREFIX "XXXXXX",
	         (unsigned)geteuid());
	unlinkat(records->fd, LINK, 0);
	if (!mkdtemp(pages->path) || !open_path(pages) || symlinkat(state_path, pages->fd, OWNER) ||
	    symlinkat(pages->path, records->fd, LINK))
		return -errno;
	return 0;
}

bool private_directory_open_in_memory(struct private_directory *pages,
                                      const struct private_directory *records,
                                      const char *state_path, struct failure *failure)
{
	if (is_in_memory(records->fd)) {
		*pages = *records;
		return true;
	}
	/* With the dot it may be a link. */
	directory_walk(AT_FDCWD, SHARED_MEMORY "/.", remove_abandoned, NULL);
	int error = follow_link(pages, records) ? 0 : make_linked(pages, records, state_path);
	if (error)
		return failure_set(failure, "state", "%s cannot be made: %s", pages->path,
		                   strerror(-error));
	if (!is_in_memory(pages->fd))
		return failure_set(failure, "state",
		                   "neither %s nor " SHARED_MEMORY " is in memory (tmpfs)", state_path);
	flock(pages->fd, LOCK_SH | LOCK_NB);
	return true;
}

static void count_grant(int directory, const char *name, void *context)
{
	(void)directory;
	(void)name;
	++*(unsigned *)context;
}

void private_directory_close(struct private_directory *private)
{
	unsigned grants = 0;
	private_directory_walk(private, count_grant, &grants);
	if (grants)
		return;
	unlinkat(private->fd, OWNER, 0);
	unlinkat(private->fd, LINK, 0);
	rmdir(private->path);
}
