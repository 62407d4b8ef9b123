#include "private_directory.h"

#include "log.h"
#include "process_pages.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TMPFS 0x01021994
#define SHARED_MEMORY "/dev/shm"
#define PREFIX "aliquot-%u-"
#define OWNER ".state" /* a link to the state directory */

static bool is_in_memory(int directory)
{
	struct statfs status;
	return !fstatfs(directory, &status) && status.f_type == TMPFS;
}

/* FNV-1a: a name for any path. */
static uint64_t hash_of(const char *text)
{
	uint64_t hash = UINT64_C(14695981039346656037);
	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
	return hash;
}

int private_directory_open_grant(const struct private_directory *private, const char *name)
{
	int fd = openat(private->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int private_directory_make_grant(const struct private_directory *private, const char *name)
{
	private_directory_remove_grant(private, name);
	if (mkdirat(private->fd, name, 0700))
		return -errno;
	return private_directory_open_grant(private, name);
}

/* Calls `each` for each name in the directory; closes the descriptor. */
static void walk(int fd, void (*each)(int directory, const char *name, void *context),
                 void *context)
{
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);
	if (!directory) {
		if (fd >= 0)
			close(fd);
		return;
	}
	struct dirent *entry;
	while ((entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			each(fd, entry->d_name, context);
	closedir(directory);
}

static void remove_file(int directory, const char *name, void *context)
{
	(void)context;
	unlinkat(directory, name, 0);
}

void private_directory_remove_grant(const struct private_directory *private, const char *name)
{
	int fd = private_directory_open_grant(private, name);
	if (fd < 0)
		return;
	process_pages_open_gates_of(fd);
	walk(fd, remove_file, NULL);
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
	walk(openat(private->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), visit_grant, &visit);
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

static void choose_path(struct private_directory *private, const char *state_path,
                        int state_directory)
{
	if (is_in_memory(state_directory)) {
		snprintf(private->path, sizeof(private->path), "%.*s/private", PATH_MAX - 16, state_path);
		return;
	}
	int length = snprintf(private->path, sizeof(private->path), SHARED_MEMORY "/" PREFIX,
	                      (unsigned)geteuid());
	snprintf(private->path + length, sizeof(private->path) - (size_t)length, "%016llx",
	         (unsigned long long)hash_of(state_path));
	walk(open(SHARED_MEMORY, O_RDONLY | O_DIRECTORY | O_CLOEXEC), remove_abandoned, NULL);
}

bool private_directory_open(struct private_directory *private, const char *state_path,
                            int state_directory, struct failure *failure)
{
	choose_path(private, state_path, state_directory);
	if (mkdir(private->path, 0700) && errno != EEXIST)
		return failure_set(failure, "state", "%s cannot be created: %s", private->path,
		                   strerror(errno));
	if (!open_path(private))
		return failure_set(failure, "state", "%s cannot be used: %s", private->path,
		                   strerror(errno));
	if (!is_in_memory(private->fd))
		return failure_set(failure, "state", "%s is not in memory (tmpfs)", private->path);
	flock(private->fd, LOCK_SH | LOCK_NB);
	if (symlinkat(state_path, private->fd, OWNER) && errno != EEXIST)
		return failure_set(failure, "state", "%s cannot be written: %s", private->path,
		                   strerror(errno));
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
	rmdir(private->path);
}
