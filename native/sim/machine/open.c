/* Opens the machine's file, or creates it. See machine.h. */
#include "machine.h"

#include "mig.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t hash(uint64_t h, const char *text)
{
	for (; *text; text++)
		h = (h ^ (uint8_t)*text) * 0x100000001b3ull;
	return h;
}

static struct sim_map *map_file(int fd)
{
	void *map = mmap(NULL, sizeof(struct sim_map), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return map == MAP_FAILED ? NULL : map;
}

static void fill(struct sim_map *map, const struct sim_shape *shape, const char *folder)
{
	map->magic = SIM_MAGIC;
	map->version = SIM_VERSION;
	map->size = sizeof(*map);
	memcpy(map->model, shape->model, sizeof(map->model));
	map->count = shape->count;
	map->seed = hash(0xcbf29ce484222325ull, folder);
	mig_choose(map, shape, getenv("ALIQUOT_SIMULATE_MIG"));
	for (uint32_t g = 0; g < SIM_UNITS; g++)
		map->gpus[g].running = map->gpus[g].last = SIM_NONE;
}

/* Writes a complete file under a temporary name, then links it to its real name: other processes see
 * the whole file or none. */
static int create(const struct sim_shape *shape, const char *folder)
{
	char own[PATH_MAX + 32], path[PATH_MAX + 16];
	snprintf(path, sizeof(path), "%s/machine", folder);
	snprintf(own, sizeof(own), "%s.XXXXXX", path);
	int fd = mkostemp(own, O_CLOEXEC);
	if (fd < 0)
		return -1;
	int error = posix_fallocate(fd, 0, sizeof(struct sim_map));
	struct sim_map *map = error ? NULL : map_file(fd);
	if (map) {
		fill(map, shape, folder);
		munmap(map, sizeof(*map));
		error = fchmod(fd, 0666) || link(own, path) ? errno : 0;
	} else if (!error) {
		error = errno;
	}
	unlink(own);
	close(fd);
	errno = error;
	return error && error != EEXIST ? -1 : 0;
}

/* Maps the file. False with an empty `why`: it is of another version. */
static bool map_machine(struct machine *m, const char *folder, char *why, size_t size)
{
	struct stat st;
	*why = 0;
	if (fstat(m->fd, &st) || (size_t)st.st_size != sizeof(struct sim_map))
		return false;
	m->map = map_file(m->fd);
	if (!m->map) {
		snprintf(why, size, "the machine in %.160s cannot be mapped: %s", folder, strerror(errno));
		return false;
	}
	if (m->map->magic == SIM_MAGIC && m->map->version == SIM_VERSION)
		return true;
	munmap(m->map, sizeof(*m->map));
	m->map = NULL;
	return false;
}

static bool open_file(struct machine *m, const char *folder)
{
	if (m->folder < 0)
		m->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	m->fd = m->folder < 0 ? -1 : openat(m->folder, "machine", O_RDWR | O_CLOEXEC);
	return m->fd >= 0;
}

/* Removes the file, which is of another version, if no process has it open: each holds a record lock
 * on some byte of it, in every version. False: `why` says which process has it. */
static bool remove_file(struct machine *m, const char *folder, char *why, size_t size)
{
	struct flock any = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct stat own, named;
	flock(m->fd, LOCK_EX); /* one process at a time, or one could remove what another has made */
	if (fstat(m->fd, &own) || fstatat(m->folder, "machine", &named, 0) ||
	    own.st_ino != named.st_ino || own.st_dev != named.st_dev)
		return true;
	if (!fcntl(m->fd, F_GETLK, &any) && any.l_type != F_UNLCK) {
		char user[32] = "a process in another container";
		if (any.l_pid > 0)
			snprintf(user, sizeof(user), "process %d", (int)any.l_pid);
		snprintf(why, size, "%.120s/machine is of another version, and %s uses it: end that first",
		         folder, user);
		return false;
	}
	if (!unlinkat(m->folder, "machine", 0) || errno == ENOENT)
		return true;
	snprintf(why, size, "%.160s/machine is of another version and cannot be removed: %s", folder,
	         strerror(errno));
	return false;
}

/* Opens the machine in the folder. One that is missing or of another version is made anew. */
static bool open_or_make(struct machine *m, const char *folder, char *why, size_t size)
{
	for (;;) {
		if (!open_file(m, folder) && errno == ENOENT && !create(&m->shape, folder) &&
		    !open_file(m, folder) && errno == ENOENT)
			continue; /* another process has removed it, and makes it anew */
		if (m->fd < 0) {
			snprintf(why, size, "cannot open the state in ALIQUOT_SIMULATE_STATE: %s",
			         strerror(errno));
			return false;
		}
		if (map_machine(m, folder, why, size))
			return true;
		if (*why || !remove_file(m, folder, why, size))
			return false;
		close(m->fd);
	}
}

/* Opens the machine that the environment names. */
static bool open_named(struct machine *m, const char *choice, const char *state, char *why,
                       size_t size)
{
	char folder[PATH_MAX];
	if (!shape_read(&m->shape, choice, why, size))
		return false;
	if (!realpath(state, folder)) {
		snprintf(why, size, "ALIQUOT_SIMULATE_STATE: %s", strerror(errno));
		return false;
	}
	if (!open_or_make(m, folder, why, size))
		return false;
	if (m->map->count != m->shape.count || strcmp(m->map->model, m->shape.model)) {
		snprintf(why, size, "this state holds a machine of %.16s:%u, not %s:%u", m->map->model,
		         m->map->count, m->shape.model, m->shape.count);
		return false;
	}
	return true;
}

/* Opens the machine that is mounted into a container. */
static bool open_mounted(struct machine *m, char *why, size_t size)
{
	char choice[32];
	if (!open_file(m, SIM_MOUNTED)) {
		if (errno == ENOENT)
			snprintf(why, size, "set ALIQUOT_SIMULATE=MODEL:COUNT and ALIQUOT_SIMULATE_STATE=DIR");
		else
			snprintf(why, size, "the machine in %s: %s", SIM_MOUNTED, strerror(errno));
		return false;
	}
	if (!map_machine(m, SIM_MOUNTED, why, size)) {
		if (!*why)
			snprintf(why, size, "the machine in %s is of another version: restart the container",
			         SIM_MOUNTED);
		return false;
	}
	snprintf(choice, sizeof(choice), "%.15s:%u", m->map->model, m->map->count);
	return shape_read(&m->shape, choice, why, size);
}

bool machine_open(struct machine *m, char *why, size_t size)
{
	const char *choice = getenv("ALIQUOT_SIMULATE"), *state = getenv("ALIQUOT_SIMULATE_STATE");
	bool chosen = choice && *choice, placed = state && *state;
	memset(m, 0, sizeof(*m));
	m->fd = m->folder = -1;
	m->slot = SIM_NONE;
	if (chosen != placed) {
		snprintf(why, size,
		         "set both: ALIQUOT_SIMULATE=MODEL:COUNT and ALIQUOT_SIMULATE_STATE=DIR");
		return false;
	}
	if (chosen ? !open_named(m, choice, state, why, size) : !open_mounted(m, why, size))
		return false;
	if (!machine_take_seat(m)) {
		snprintf(why, size, "%u processes use this machine already", SIM_SEATS);
		return false;
	}
	return true;
}
