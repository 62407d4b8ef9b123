#include "cgroup.h"

#include "identity.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROOT "/sys/fs/cgroup"

/* The path of the next line and its length; NULL: no more lines. A line is
 * HIERARCHY:CONTROLLERS:PATH, and controllers have no colon. */
static const char *next_path(const char **rest, size_t *length)
{
	while (**rest) {
		const char *line = *rest, *end = strchrnul(line, '\n');
		*rest = *end ? end + 1 : end;
		const char *path = memchr(line, ':', (size_t)(end - line));
		path = path ? memchr(path + 1, ':', (size_t)(end - path - 1)) : NULL;
		if (!path)
			continue;
		*length = (size_t)(end - path - 1);
		return path + 1;
	}
	return NULL;
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

bool cgroup_read(int32_t pid, struct cgroup_file *out)
{
	return identity_read_file(pid, "cgroup", out->text, sizeof(out->text)) > 0;
}

bool cgroup_contains(const char *cgroup, const struct cgroup_file *file)
{
	const char *rest = file->text;
	size_t wanted = strlen(cgroup), length;
	for (const char *path; (path = next_path(&rest, &length));)
		if (length >= wanted && !memcmp(path, cgroup, wanted) &&
		    (length == wanted || path[wanted] == '/'))
			return true;
	return false;
}

bool cgroup_has(const char *cgroup, int32_t pid)
{
	struct cgroup_file file;
	return cgroup_read(pid, &file) && cgroup_contains(cgroup, &file);
}

static bool is_below(const char *hierarchy, const char *cgroup)
{
	char path[NAME_MAX + sizeof(ROOT) + CGROUP_PATH_SIZE + 2];
	snprintf(path, sizeof(path), ROOT "/%s%s", hierarchy, cgroup);
	return !access(path, F_OK);
}

bool cgroup_exists(const char *cgroup)
{
	bool found = is_below("", cgroup); /* version 2 alone; otherwise each hierarchy has a folder */
	DIR *root = found ? NULL : opendir(ROOT);
	struct dirent *entry;
	while (root && !found && (entry = readdir(root)))
		found = entry->d_name[0] != '.' && is_below(entry->d_name, cgroup);
	if (root)
		closedir(root);
	return found;
}

bool cgroup_apart(int32_t pid, int32_t other, char out[CGROUP_PATH_SIZE])
{
	struct cgroup_file own, others;
	const char *rest = own.text;
	size_t length;
	*out = 0;
	if (!cgroup_read(pid, &own) || !cgroup_read(other, &others))
		return false;
	for (const char *path; (path = next_path(&rest, &length));) {
		char candidate[CGROUP_PATH_SIZE];
		if (length <= strlen(out) || !cgroup_is_path(path, length))
			continue;
		memcpy(candidate, path, length);
		candidate[length] = 0;
		if (!cgroup_contains(candidate, &others))
			strcpy(out, candidate);
	}
	return *out;
}
