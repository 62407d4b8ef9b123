/* The cgroups of a process, as this process sees them in /proc/PID/cgroup.
 *
 * With version 1 a process has a path in each hierarchy, with version 2 one path, on machines with
 * both both. A process is inside a cgroup if one of its paths is that cgroup's or one below: a
 * container may make cgroups of its own below the one it was given, and not leave that one.
 */
#ifndef ARBITER_CGROUP_H
#define ARBITER_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CGROUP_PATH_SIZE 512

/* An absolute path without "." and empty parts, and not the root. */
bool cgroup_is_path(const char *text, size_t length);

/* /proc/PID/cgroup, cut off if it is longer than that: some twenty hierarchies with long paths. */
struct cgroup_file {
	char text[16384];
};

/* False: the process is gone. */
bool cgroup_read(int32_t pid, struct cgroup_file *out);

/* Whether the process with that file is inside the cgroup. */
bool cgroup_contains(const char *path, const struct cgroup_file *file);

/* The same for a process by its pid; false also if it is gone. */
bool cgroup_has(const char *path, int32_t pid);

/* Whether one is visible to us at that path, in any hierarchy. */
bool cgroup_exists(const char *path);

/* A cgroup that has the process and not the other one: the longest of its paths for which that holds;
 * false: there is none, or the process is gone. */
bool cgroup_apart(int32_t pid, int32_t other, char path[CGROUP_PATH_SIZE]);

#endif
