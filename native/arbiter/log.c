#include "log.h"

#include "loop.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_MOST (4 << 20)

static const char file_name[] = "arbiter.log", earlier_name[] = "arbiter.log.1";
static int directory = -1;

static int open_file(void)
{
	int fd = openat(directory, file_name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC,
	                0600);
	if (fd < 0)
		return -errno;
	fchmod(fd, 0600); /* an earlier version let everybody read it */
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
	return 0;
}

int log_to_file(int to)
{
	directory = to;
	return open_file();
}

/* The arbiter and its parent write to the same file: the process that finds it too large renames it, and the
 * other finds that its own is not the named one any more. */
static void bound_file(void)
{
	struct stat own, named;
	if (directory < 0 || fstat(STDERR_FILENO, &own))
		return;
	bool is_named = !fstatat(directory, file_name, &named, AT_SYMLINK_NOFOLLOW) &&
	                named.st_ino == own.st_ino && named.st_dev == own.st_dev;
	if (is_named && own.st_size < FILE_MOST)
		return;
	if (is_named)
		renameat(directory, file_name, directory, earlier_name);
	open_file();
}

/* Lines of one kind: `at` is when they would all have come if they came at the bound's pace. */
struct kind {
	const char *format;
	uint32_t grant; /* a hash of its name; 0: of all grants */
	uint64_t at;
	uint64_t missing;
};

struct bound {
	uint64_t pace_ns;
	unsigned at_once;
};

#define KINDS 1024
static struct kind kinds[KINDS];

static uint32_t hash(const char *text)
{
	uint32_t value = 2166136261u;
	for (; *text; text++)
		value = (value ^ (unsigned char)*text) * 16777619u;
	return value | 1;
}

/* Two kinds with one place take it from each other, and are then bounded by format only. */
static struct kind *find_kind(const char *format, uint32_t grant)
{
	uint64_t mixed = ((uintptr_t)format ^ (uint64_t)grant << 17) * UINT64_C(0x9e3779b97f4a7c15);
	struct kind *kind = &kinds[(mixed >> 32) % KINDS];
	if (kind->format != format || kind->grant != grant)
		*kind = (struct kind){.format = format, .grant = grant};
	return kind;
}

static bool is_within(struct kind *kind, struct bound bound)
{
	uint64_t now = loop_now();
	if (kind->at < now)
		kind->at = now;
	if (kind->at > now + bound.at_once * bound.pace_ns) {
		kind->missing++;
		return false;
	}
	kind->at += bound.pace_ns;
	return true;
}

/* Whether the line is written; *missing: lines like it that were not. */
static bool admit(const char *format, const char *grant, uint64_t *missing)
{
	struct kind *own = grant ? find_kind(format, hash(grant)) : NULL;
	if (own && !is_within(own, (struct bound){SECOND_NS / 4, 64}))
		return false;
	struct kind *all = find_kind(format, 0);
	if (!is_within(all, (struct bound){SECOND_NS / 50, 512}))
		return false;
	struct kind *counted = own ? own : all;
	*missing = counted->missing;
	counted->missing = 0;
	return true;
}

static size_t write_time(char *line, size_t size)
{
	struct timespec now;
	struct tm utc;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	size_t used = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &utc);
	return used + (size_t)snprintf(line + used, size - used, ".%03ldZ ", now.tv_nsec / 1000000);
}

void log_event(const char *format, ...)
{
	char line[1024], *at = line;
	const char *grant = NULL;
	uint64_t missing = 0;
	va_list args;
	if (!strncmp(format, "grant %s", strlen("grant %s"))) {
		va_start(args, format);
		grant = va_arg(args, const char *);
		va_end(args);
	}
	if (!admit(format, grant, &missing))
		return;
	/* The last bytes are for the number of missing lines and the newline. */
	const char *end = line + sizeof(line) - 64;
	at += write_time(at, sizeof(line));
	va_start(args, format);
	int more = vsnprintf(at, (size_t)(end - at), format, args);
	va_end(args);
	if (more < 0)
		return;
	at = at + more < end ? at + more : (char *)end - 1;
	if (missing)
		at += sprintf(at, " (%llu more like this)", (unsigned long long)missing);
	*at++ = '\n';
	bound_file();
	ssize_t ignored = write(STDERR_FILENO, line, (size_t)(at - line));
	(void)ignored;
}
