/* Reads /proc/meminfo. */
#include "aliquot/host.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A line "NAME:  NUMBER kB", in bytes; 0: there is none. */
static uint64_t line_bytes(const char *text, const char *name)
{
	const char *line = strstr(text, name);
	return line ? strtoull(line + strlen(name), NULL, 10) << 10 : 0;
}

struct aliquot_host aliquot_host_read(void)
{
	char text[1024] = ""; /* both lines are among the first */
	int file = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	ssize_t used = file < 0 ? -1 : read(file, text, sizeof(text) - 1);
	if (file >= 0)
		close(file);
	text[used > 0 ? used : 0] = 0;
	return (struct aliquot_host){
		.total_bytes = line_bytes(text, "MemTotal:"),
		.available_bytes = line_bytes(text, "MemAvailable:"),
	};
}
