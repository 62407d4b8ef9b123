/* Preloaded into the arbiter: kills it before its Nth system call that changes something outside it. Its
 * parent keeps running, unless KILL_PARENT is set.
 *
 * KILL_AT names a file with the number; without the file nothing is counted. The file is removed
 * before the kill, so that the next arbiter survives.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

static long steps;

static void step(void)
{
	const char *path = getenv("KILL_AT");
	char number[16] = "";
	int ends_with_parent = 0;
	prctl(PR_GET_PDEATHSIG, &ends_with_parent);
	if (!ends_with_parent)
		return;
	int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	ssize_t used = read(fd, number, sizeof(number) - 1);
	syscall(SYS_close, fd);
	if (used <= 0 || ++steps < atol(number))
		return;
	/* Whoever removes the file decides: the test removes it when it waits no longer. */
	if (syscall(SYS_unlinkat, AT_FDCWD, path, 0))
		return;
	if (getenv("KILL_PARENT"))
		kill(getppid(), SIGKILL);
	raise(SIGKILL);
}

/* The call itself, with a step before it. */
#define STEP(result, name, parameters, arguments)                                                  \
	API result name parameters                                                                     \
	{                                                                                              \
		static result(*real) parameters;                                                           \
		if (!real)                                                                                 \
			real = (result(*) parameters)dlsym(RTLD_NEXT, #name);                                  \
		step();                                                                                    \
		return real arguments;                                                                     \
	}

STEP(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode))
STEP(int, posix_fallocate, (int fd, off_t at, off_t size), (fd, at, size))
STEP(int, fchmod, (int fd, mode_t mode), (fd, mode))
STEP(int, fchmodat, (int fd, const char *path, mode_t mode, int flags), (fd, path, mode, flags))
STEP(void *, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t offset),
     (at, size, protection, flags, fd, offset))
STEP(int, munmap, (void *at, size_t size), (at, size))
STEP(int, close, (int fd), (fd))
STEP(int, socket, (int domain, int type, int protocol), (domain, type, protocol))
STEP(int, bind, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size))
STEP(int, listen, (int fd, int backlog), (fd, backlog))
STEP(int, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new))
STEP(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
STEP(int, epoll_ctl, (int epoll, int operation, int fd, struct epoll_event *event),
     (epoll, operation, fd, event))
STEP(ssize_t, send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags))
STEP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
STEP(ssize_t, recv, (int fd, void *data, size_t size, int flags), (fd, data, size, flags))
