#include "state.h"

#include "directory.h"
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LOCK_TIMEOUT_MS 500
#define LINE_SIZE 64

/* The lock of a killed arbiter is released with its last process, a moment after the first: wait for
 * that. */
static bool take_lock(int fd)
{
	for (int waited = 0;; waited += 5) {
		if (!flock(fd, LOCK_EX | LOCK_NB))
			return true;
		if ((errno != EWOULDBLOCK && errno != EINTR) || waited >= LOCK_TIMEOUT_MS)
			return false;
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	}
}

/* Reads the first line of a file; empty if it cannot be read. */
static void read_line(int directory, const char *path, char out[LINE_SIZE])
{
	out[0] = 0;
	int fd = openat(directory, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t used = read(fd, out, LINE_SIZE - 1);
	close(fd);
	out[used > 0 ? used : 0] = 0;
	out[strcspn(out, "\n")] = 0;
}

static bool open_directory(struct state *state, const char *path, struct failure *failure)
{
	if (mkdir(path, 0755) && errno != EEXIST)
		return failure_set(failure, "state", "the state directory %s cannot be created: %s", path,
		                   strerror(errno));
	if (!realpath(path, state->path))
		return failure_set(failure, "state", "the state directory %s cannot be used: %s", path,
		                   strerror(errno));
	state->directory = open(state->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (state->directory < 0)
		return failure_set(failure, "state", "the state directory %s cannot be opened: %s",
		                   state->path, strerror(errno));
	struct stat status;
	if (fstat(state->directory, &status))
		return failure_set(failure, "state", "%s: %s", state->path, strerror(errno));
	if (status.st_uid != geteuid() || (status.st_mode & S_IWOTH))
		return failure_set(failure, "state",
		                   "the state directory %s must belong to the arbiter's user and be "
		                   "writable by nobody else",
		                   state->path);
	return true;
}

static bool check_version(int directory, const char *path, unsigned *version,
                          struct failure *failure)
{
	char text[LINE_SIZE];
	read_line(directory, "version", text);
	*version = *text ? (unsigned)strtoul(text, NULL, 10) : 1;
	if (*version >= 1 && *version <= STATE_VERSION)
		return true;
	return failure_set(
		failure, "version",
		"%.300s is of version %s, and this arbiter knows versions up to %u: start the "
		"newer Aliquot that made it",
		path, text, STATE_VERSION);
}

bool state_check_version(const char *path, struct failure *failure)
{
	unsigned ignored;
	int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		return errno == ENOENT ||
		       failure_set(failure, "state", "%.300s cannot be opened: %s", path, strerror(errno));
	bool known = check_version(directory, path, &ignored, failure);
	close(directory);
	return known;
}

static const struct {
	const char *name;
	mode_t mode;
} folders[STATE_FOLDERS] = {
	[STATE_GRANTS] = {"grants", 0711},
	[STATE_KEPT] = {"kept", 0700},
};

const char *state_folder_name(enum state_folder folder)
{
	return folders[folder].name;
}

/* The modes are set again: an earlier arbiter may have had others. */
static bool open_folder(struct state *state, enum state_folder folder, struct failure *failure)
{
	const char *name = folders[folder].name;
	int fd = -1;
	if (!mkdirat(state->directory, name, folders[folder].mode) || errno == EEXIST)
		fd = openat(state->directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && fchmod(fd, folders[folder].mode)) {
		close(fd);
		fd = -1;
	}
	state->folders[folder] = fd;
	return fd >= 0 || failure_set(failure, "state", "%s/%s cannot be opened: %s", state->path, name,
	                              strerror(errno));
}

bool state_open(struct state *state, const char *path, struct failure *failure)
{
	state->directory = state->folders[STATE_GRANTS] = state->folders[STATE_KEPT] = -1;
	state->lock = -1;
	if (!open_directory(state, path, failure))
		return false;
	state->lock = openat(state->directory, "arbiter.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (state->lock < 0)
		return failure_set(failure, "state", "%s/arbiter.lock cannot be opened: %s", state->path,
		                   strerror(errno));
	if (!take_lock(state->lock))
		return failure_set(failure, "locked", "an arbiter already runs for %s", state->path);
	return check_version(state->directory, state->path, &state->version, failure) &&
	       private_directory_open(&state->records, state->path, failure) &&
	       private_directory_open_in_memory(&state->pages, &state->records, state->path, failure) &&
	       open_folder(state, STATE_GRANTS, failure) && open_folder(state, STATE_KEPT, failure);
}

int state_write_file(const struct state *state, const char *name, const char *text)
{
	char temporary[32];
	int directory = state->directory;
	snprintf(temporary, sizeof(temporary), ".%s", name);
	int fd = openat(directory, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	size_t size = strlen(text);
	ssize_t written = write(fd, text, size);
	int error = written < 0 ? -errno : (size_t)written < size ? -ENOSPC : 0;
	close(fd);
	if (!error && renameat(directory, temporary, directory, name))
		error = -errno;
	if (error)
		unlinkat(directory, temporary, 0);
	return error;
}

bool state_write_pid(struct state *state, pid_t pid, struct failure *failure)
{
	char text[32];
	snprintf(text, sizeof(text), "%d\n", (int)pid);
	int error = state_write_file(state, "arbiter.pid", text);
	if (error)
		return failure_set(failure, "state", "%s/arbiter.pid cannot be written: %s", state->path,
		                   strerror(-error));
	return true;
}

bool state_set_version(struct state *state, struct failure *failure)
{
	char text[LINE_SIZE];
	snprintf(text, sizeof(text), "%u\n", STATE_VERSION);
	int error = state_write_file(state, "version", text);
	if (error)
		return failure_set(failure, "state", "%s/version cannot be written: %s", state->path,
		                   strerror(-error));
	state->version = STATE_VERSION;
	return true;
}

void state_remove_pid(struct state *state)
{
	unlinkat(state->directory, "arbiter.pid", 0);
}

static void log_not_removed(struct state *state, enum state_folder folder, const char *name)
{
	log_event("%s/%s/%s cannot be removed: %s", state->path, folders[folder].name, name,
	          strerror(errno));
}

void state_remove_incomplete(struct state *state, enum state_folder folder, const char *name)
{
	directory_remove_files(state->folders[folder], name);
	if (unlinkat(state->folders[folder], name, AT_REMOVEDIR) && errno != ENOENT)
		log_not_removed(state, folder, name);
}

void state_remove_directory(struct state *state, enum state_folder folder, const char *name)
{
	char dotted[NAME_MAX + 1];
	int parent = state->folders[folder];
	snprintf(dotted, sizeof(dotted), ".ending-%s", name);
	state_remove_incomplete(state, folder, dotted);
	if (!renameat(parent, name, parent, dotted))
		state_remove_incomplete(state, folder, dotted);
	else if (errno != ENOENT)
		log_not_removed(state, folder, name);
}

struct cleaning {
	struct state *state;
	enum state_folder folder;
	bool also_complete;
};

static void clean_entry(int directory, const char *name, void *context)
{
	const struct cleaning *cleaning = context;
	(void)directory;
	if (name[0] == '.')
		state_remove_incomplete(cleaning->state, cleaning->folder, name);
	else if (cleaning->also_complete)
		state_remove_directory(cleaning->state, cleaning->folder, name);
}

static void clean_entries(struct state *state, enum state_folder folder, bool also_complete)
{
	struct cleaning cleaning = {state, folder, also_complete};
	directory_walk(state->folders[folder], ".", clean_entry, &cleaning);
}

void state_clean(struct state *state)
{
	char now[LINE_SIZE], then[LINE_SIZE];
	read_line(AT_FDCWD, "/proc/sys/kernel/random/boot_id", now);
	read_line(state->directory, "boot", then);
	bool of_earlier_boot = *now && *then && strcmp(now, then);
	if (of_earlier_boot)
		log_event("the machine was rebooted: removing the grants of the earlier boot");
	clean_entries(state, STATE_GRANTS, of_earlier_boot);
	clean_entries(state, STATE_KEPT, of_earlier_boot);
	if (!*now || !strcmp(now, then))
		return;
	int error = state_write_file(state, "boot", now);
	if (error) {
		/* No file is better than one that would remove the grants of this boot too. */
		unlinkat(state->directory, "boot", 0);
		log_event("%s/boot cannot be written: %s", state->path, strerror(-error));
	}
}

int state_listen(int directory, const char *name, int type, mode_t mode)
{
	/* Through /proc, because a socket address has little space for a path. Under another name first,
	 * so that the old socket answers until the new one does. */
	char temporary[32];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(temporary, sizeof(temporary), ".%s", name);
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", directory,
	         temporary);
	unlinkat(directory, temporary, 0);
	int fd = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    fchmodat(directory, temporary, mode, 0) || listen(fd, SOMAXCONN) ||
	    renameat(directory, temporary, directory, name)) {
		int error = -errno;
		close(fd);
		unlinkat(directory, temporary, 0);
		return error;
	}
	return fd;
}
