#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void log_event(const char *format, ...)
{
	char line[1024];
	struct timespec now;
	struct tm utc;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	size_t used = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &utc);
	used += (size_t)snprintf(line + used, sizeof(line) - used, ".%03ldZ ", now.tv_nsec / 1000000);
	va_list args;
	va_start(args, format);
	int more = vsnprintf(line + used, sizeof(line) - used - 1, format, args);
	va_end(args);
	if (more < 0)
		return;
	used += (size_t)more;
	if (used > sizeof(line) - 2)
		used = sizeof(line) - 2;
	line[used++] = '\n';
	ssize_t ignored = write(STDERR_FILENO, line, used);
	(void)ignored;
}
