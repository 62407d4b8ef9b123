#include "cgroup.h"

#include "identity.h"

#include <string.h>

/* Bytes of /proc/PID/cgroup: some twenty hierarchies with long paths. A longer file is cut off. */
#define FILE_SIZE 16384

/* The path of the next line, which ends there with 0; NULL: no more lines. A line is
 * HIERARCHY:CONTROLLERS:PATH, and controllers have no colon. */
static const char *next_path(char **rest)
{
	for (;;) {
		char *line = strsep(rest, "\n");
		if (!line)
			return NULL;
		char *path = strchr(line, ':');
		path = path ? strchr(path + 1, ':') : NULL;
		if (path)
			return path + 1;
	}
}

bool cgroup_is_path(const char *text, size_t length)
{
	if (length < 2 || length >= CGROUP_PATH_SIZE || text[0] != '/' || text[length - 1] == '/')
		return false;
	for (size_t i = 0; i < length; i++) {
		bool begins = i && text[i - 1] == '/';
		if (text[i] <= ' ' || text[i] == 0x7f || (begins && text[i] == '/'))
			return false;
		if (begins && text[i] == '.' && (i + 1 == length || text[i + 1] == '/'))
			return false;
	}
	return true;
}

static bool is_within(const char *path, const char *cgroup)
{
	size_t length = strlen(cgroup);
	return !strncmp(path, cgroup, length) && (!path[length] || path[length] == '/');
}

bool cgroup_has(const char *cgroup, int32_t pid)
{
	char text[FILE_SIZE], *rest = text;
	if (identity_read_file(pid, "cgroup", text, sizeof(text)) <= 0)
		return false;
	for (const char *path; (path = next_path(&rest));)
		if (is_within(path, cgroup))
			return true;
	return false;
}

bool cgroup_apart(int32_t pid, int32_t other, char out[CGROUP_PATH_SIZE])
{
	char text[FILE_SIZE], *rest = text;
	*out = 0;
	if (identity_read_file(pid, "cgroup", text, sizeof(text)) <= 0)
		return false;
	for (const char *path; (path = next_path(&rest));)
		if (strlen(path) > strlen(out) && cgroup_is_path(path, strlen(path)) &&
		    !cgroup_has(path, other))
			strcpy(out, path);
	return *out;
}
