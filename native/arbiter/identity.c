#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than the C library's headers may be. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

ssize_t identity_read_file(int32_t pid, const char *file, char *out, size_t size)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t used = read(fd, out, size - 1);
	int error = errno;
	close(fd);
	if (used < 0)
		return -error;
	out[used] = 0;
	return used;
}

/* The fields of /proc/PID/stat that are used here. */
struct stat_line {
	char state;
	uint64_t start_time, cpu_ticks;
	struct image image;
};

/* Finds a field by number, from the bracket that ends field 2; NULL: there are not that many. */
static const char *stat_field(const char *at, int number)
{
	for (int field = 2; at && field < number; field++)
		at = strchr(at + 1, ' ');
	return at;
}

static int read_stat(int32_t pid, struct stat_line *out)
{
	char stat[1024];
	ssize_t used = identity_read_file(pid, "stat", stat, sizeof(stat));
	if (used == -ENOENT)
		return -ESRCH;
	if (used < 0)
		return (int)used;
	/* Field 2, the name, may contain any bytes; the last bracket ends it. */
	const char *name_end = strrchr(stat, ')');
	const char *start = stat_field(name_end, 22), *code = stat_field(name_end, 26);
	const char *user = stat_field(name_end, 14);
	char *rest;
	if (!start || !code || !user)
		return -EIO;
	uint64_t cpu_ticks = strtoull(user + 1, &rest, 10);
	cpu_ticks += strtoull(rest, NULL, 10);
	struct image image;
	image.start_code = strtoull(code + 1, &rest, 10);
	image.end_code = strtoull(rest, &rest, 10);
	image.start_stack = strtoull(rest, NULL, 10);
	/* To a reader without permission the kernel reports the stack at 0 and the code at 1. */
	if (!image.start_stack)
		image = (struct image){0};
	*out = (struct stat_line){.state = name_end[1] ? name_end[2] : 0,
	                          .start_time = strtoull(start + 1, NULL, 10),
	                          .cpu_ticks = cpu_ticks,
	                          .image = image};
	return 0;
}

bool identity_is_stopped(int32_t pid, uint64_t *cpu_ticks)
{
	struct stat_line line;
	*cpu_ticks = 0;
	if (read_stat(pid, &line))
		return false;
	*cpu_ticks = line.cpu_ticks;
	return line.state == 'T' || line.state == 't';
}

int identity_start_time(int32_t pid, uint64_t *out)
{
	struct stat_line line;
	int error = read_stat(pid, &line);
	if (!error)
		*out = line.start_time;
	return error;
}

bool identity_is_in_other_namespace(int32_t pid)
{
	char path[64];
	struct stat own, other;
	snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
	return !stat("/proc/self/ns/pid", &own) && !stat(path, &other) &&
	       (own.st_ino != other.st_ino || own.st_dev != other.st_dev);
}

bool identity_is_reused(int32_t pid, uint64_t start_time)
{
	uint64_t now;
	return !identity_start_time(pid, &now) && now != start_time;
}

/* "mnt:[NUMBER]"; empty: the kernel does not say. */
static void read_mounts(const char *process, char out[32])
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%s/ns/mnt", process);
	ssize_t used = readlink(path, out, 31);
	out[used > 0 ? used : 0] = 0;
}

bool identity_shares_our_mounts(int32_t pid)
{
	char number[16], ours[32], theirs[32];
	snprintf(number, sizeof(number), "%d", pid);
	read_mounts("self", ours);
	read_mounts(number, theirs);
	return !*ours || !*theirs || !strcmp(ours, theirs);
}

struct image identity_image(int32_t pid)
{
	struct stat_line line;
	return read_stat(pid, &line) ? (struct image){0} : line.image;
}

bool identity_is_other_image(const struct image *one, const struct image *other)
{
	return one->start_stack && other->start_stack &&
	       (one->start_code != other->start_code || one->end_code != other->end_code ||
	        one->start_stack != other->start_stack);
}

static int open_pidfd(int32_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return errno == EINVAL ? -ESRCH : -errno;
	return fd;
}

int identity_kill(int pidfd)
{
	return syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) ? -errno : 0;
}

bool identity_is_alive(int pidfd)
{
	struct pollfd poller = {.fd = pidfd, .events = POLLIN};
	return poll(&poller, 1, 0) == 0;
}

int identity_reopen(int32_t pid, uint64_t start_time)
{
	if (pid <= 0)
		return -ESRCH;
	int fd = open_pidfd(pid);
	if (fd < 0)
		return fd;
	/* If it is alive after its start time was read, the time was read from this process. */
	uint64_t now = 0;
	int error = identity_start_time(pid, &now);
	if (!error && (now != start_time || !identity_is_alive(fd)))
		error = -ESRCH;
	if (error) {
		close(fd);
		return error;
	}
	return fd;
}

static int credentials_of(int socket, struct ucred *out)
{
	socklen_t size = sizeof(*out);
	return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, out, &size) ? -errno : 0;
}

int identity_uid_of_peer(int socket, uint32_t *uid)
{
	struct ucred credentials;
	int error = credentials_of(socket, &credentials);
	if (!error)
		*uid = credentials.uid;
	return error;
}

int identity_pid_of_peer(int socket, int32_t *pid)
{
	struct ucred credentials;
	int error = credentials_of(socket, &credentials);
	if (!error)
		*pid = credentials.pid;
	return error;
}

static int peer_pidfd(int socket, int32_t pid)
{
	int fd = -1;
	socklen_t size = sizeof(fd);
	if (!getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size))
		return fd;
	if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
		return -errno;
	if (errno == ESRCH || errno == EINVAL)
		return -ESRCH;
	/* An older kernel. The same start time before and after means that the pid was not reused. */
	uint64_t before = 0, after = 0;
	int error = identity_start_time(pid, &before);
	if (error)
		return error;
	fd = open_pidfd(pid);
	if (fd < 0)
		return fd;
	error = identity_start_time(pid, &after);
	if (!error && before != after)
		error = -ESRCH;
	if (error) {
		close(fd);
		return error;
	}
	return fd;
}

int identity_of_peer(int socket, struct identity *out)
{
	struct ucred credentials;
	int error = credentials_of(socket, &credentials);
	if (error)
		return error;
	if (credentials.pid <= 0)
		return -EXDEV;
	int fd = peer_pidfd(socket, credentials.pid);
	if (fd < 0)
		return fd;
	struct stat_line line;
	error = read_stat(credentials.pid, &line);
	if (!error && !identity_is_alive(fd))
		error = -ESRCH;
	if (error) {
		close(fd);
		return error;
	}
	*out = (struct identity){
		.pid = credentials.pid,
		.uid = credentials.uid,
		.start_time = line.start_time,
		.image = line.image,
		.pidfd = fd,
	};
	return 0;
}

/* Whether the process runs for that user alone: a program with more rights than its user does not. 0, or
 * -errno. */
static int check_user(int32_t pid, uint32_t uid)
{
	char status[4096];
	unsigned real = 0, effective = 0, saved = 0;
	ssize_t used = identity_read_file(pid, "status", status, sizeof(status));
	if (used < 0)
		return used == -ENOENT ? -ESRCH : (int)used;
	/* The name, before it, has its newlines escaped. */
	const char *line = strstr(status, "\nUid:");
	if (!line || sscanf(line, "\nUid: %u %u %u", &real, &effective, &saved) != 3)
		return -EIO;
	return real == uid && effective == uid && saved == uid ? 0 : -EPERM;
}

int identity_of_process(int32_t pid, uint64_t start_time, uint32_t uid, struct identity *out)
{
	struct stat_line line = {0};
	int fd = identity_reopen(pid, start_time);
	if (fd < 0)
		return fd;
	int error = uid == IDENTITY_ANY_USER ? 0 : check_user(pid, uid);
	if (!error)
		error = read_stat(pid, &line);
	/* If it is alive now, all of this was read from it. */
	if (!error && !identity_is_alive(fd))
		error = -ESRCH;
	if (error) {
		close(fd);
		return error;
	}
	*out = (struct identity){
		.pid = pid,
		.uid = uid,
		.start_time = start_time,
		.image = line.image,
		.pidfd = fd,
	};
	return 0;
}

void identity_close(const struct identity *identity)
{
	if (identity->pidfd >= 0)
		close(identity->pidfd);
}

void identity_name(int32_t pid, char name[PROCESS_NAME_SIZE])
{
	char comm[64];
	ssize_t used = identity_read_file(pid, "comm", comm, sizeof(comm));
	if (used > 0 && comm[used - 1] == '\n')
		used--;
	if (used <= 0) {
		strcpy(name, "?");
		return;
	}
	if (used > PROCESS_NAME_SIZE - 1)
		used = PROCESS_NAME_SIZE - 1;
	memcpy(name, comm, (size_t)used);
	name[used] = 0;
}
