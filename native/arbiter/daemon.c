#include "daemon.h"

#include "supervise.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Closes descriptors that were inherited. */
static void close_others(int except)
{
	DIR *directory = opendir("/proc/self/fd");
	if (!directory)
		return;
	struct dirent *entry;
	while ((entry = readdir(directory))) {
		int fd = atoi(entry->d_name);
		if (fd > STDERR_FILENO && fd != except && fd != dirfd(directory))
			close(fd);
	}
	closedir(directory);
}

static int run_in_background(const struct options *options, int announce)
{
	setsid();
	int null = open("/dev/null", O_RDWR);
	for (int fd = 0; null >= 0 && fd <= STDERR_FILENO; fd++)
		dup2(null, fd);
	close_others(announce);
	return supervise_run(options, announce);
}

/* Waits for "ready", or for the reason and exit code if it does not start. */
static int wait_until_ready(int pipe, pid_t child)
{
	char text[600];
	size_t used = 0;
	ssize_t more;
	do {
		more = read(pipe, text + used, sizeof(text) - 1 - used);
		if (more > 0)
			used += (size_t)more;
		text[used] = 0;
		if (!strcmp(text, "ready\n")) {
			fputs(text, stdout);
			return 0;
		}
	} while (more > 0 || (more < 0 && errno == EINTR));
	int status = 0;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	fprintf(stderr, "aliquot-arbiter: %s\n", used ? text : "it died while starting");
	return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : EXIT_FAILED;
}

int daemon_start(const struct options *options)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC)) {
		fprintf(stderr, "aliquot-arbiter: cannot make a pipe: %s\n", strerror(errno));
		return EXIT_FAILED;
	}
	pid_t child = fork();
	if (child < 0) {
		fprintf(stderr, "aliquot-arbiter: cannot fork: %s\n", strerror(errno));
		return EXIT_FAILED;
	}
	if (child == 0) {
		close(ends[0]);
		return run_in_background(options, ends[1]);
	}
	close(ends[1]);
	return wait_until_ready(ends[0], child);
}
