/* Reads the health of the simulated GPUs. See health.h. */
#include "health.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_SIZE 64

static int open_file(const struct machine *m)
{
	return openat(m->folder, "health", O_RDONLY | O_CLOEXEC);
}

static bool parse(const char *line, struct health_event *event)
{
	static const char *const names[] = {[HEALTH_XID] = "xid",
	                                    [HEALTH_ECC] = "ecc",
	                                    [HEALTH_LOST] = "lost",
	                                    [HEALTH_HANGS] = "hangs",
	                                    [HEALTH_ACTION] = "action",
	                                    [HEALTH_RECOVERED] = "recovered"};
	char name[16];
	unsigned long long number = 0;
	int fields = sscanf(line, "%u %15s %llu", &event->gpu, name, &number);
	event->number = number;
	for (size_t i = 0; fields >= 2 && i < sizeof(names) / sizeof(*names); i++) {
		event->kind = (enum health_kind)i;
		if (!strcmp(name, names[i]))
			return event->gpu < SIM_MAX_GPUS;
	}
	return false;
}

/* One whole line; skips invalid lines. */
static bool read_event(int fd, uint64_t *position, struct health_event *event)
{
	for (;;) {
		char line[LINE_SIZE];
		ssize_t used = pread(fd, line, sizeof(line) - 1, (off_t)*position);
		const char *end = used > 0 ? memchr(line, '\n', (size_t)used) : NULL;
		if (!end)
			return false;
		line[end - line] = 0;
		*position += (uint64_t)(end - line) + 1;
		if (parse(line, event))
			return true;
	}
}

static void apply(struct health *health, const struct health_event *event, bool is_of_session)
{
	switch (event->kind) {
	case HEALTH_XID:
		break;
	case HEALTH_ECC:
		health->errors += event->number;
		break;
	case HEALTH_LOST:
		health->lost = true;
		break;
	case HEALTH_HANGS:
		health->hangs = true;
		break;
	case HEALTH_ACTION:
		health->knows_action = true;
		health->action = event->number;
		break;
	case HEALTH_RECOVERED:
		*health = (struct health){.lost = health->lost && is_of_session,
		                          .knows_action = health->knows_action};
	}
}

struct health health_of(const struct machine *m, uint32_t gpu, uint64_t since)
{
	struct health health = {0};
	struct health_event event;
	uint64_t position = 0;
	int fd = open_file(m);
	while (fd >= 0 && read_event(fd, &position, &event))
		if (event.gpu == gpu)
			apply(&health, &event, position > since);
	if (fd >= 0)
		close(fd);
	return health;
}

uint64_t health_end(const struct machine *m)
{
	struct stat st;
	return fstatat(m->folder, "health", &st, 0) ? 0 : (uint64_t)st.st_size;
}

bool health_next(const struct machine *m, uint64_t *position, struct health_event *event)
{
	int fd = open_file(m);
	bool found = fd >= 0 && read_event(fd, position, event);
	if (fd >= 0)
		close(fd);
	return found;
}
