/* The file all processes of the simulated machine share. See machine.h. */
#include "machine.h"

#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ROUND_NS 20000000l /* of a wait for the lock */

#define BASELINE (3328ull << 10) /* what the driver itself holds of a GPU nobody uses */

uint64_t machine_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t image_token(void)
{
	uint64_t token;
	memcpy(&token, (const void *)getauxval(AT_RANDOM), sizeof(token));
	return token;
}

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

static void make_mutex(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(mutex, &attributes);
	pthread_mutexattr_destroy(&attributes);
}

static void fill(struct sim_map *map, const struct sim_shape *shape, const char *folder)
{
	map->magic = SIM_MAGIC;
	map->version = SIM_VERSION;
	map->size = sizeof(*map);
	memcpy(map->model, shape->model, sizeof(map->model));
	map->count = shape->count;
	map->seed = hash(0xcbf29ce484222325ull, folder);
	make_mutex(&map->mutex);
	for (uint32_t g = 0; g < SIM_MAX_GPUS; g++)
		map->gpus[g].running = map->gpus[g].last = SIM_NONE;
}

/* A complete file under a name of its own, then linked to its real name: it is whole or not
 * there. */
static int create(const struct sim_shape *shape, const char *folder, const char *path)
{
	char own[PATH_MAX];
	snprintf(own, sizeof(own), "%.4000s.XXXXXX", path);
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

static bool check(const struct machine *m, char *why, size_t size)
{
	struct stat st;
	if (fstat(m->fd, &st) || (size_t)st.st_size != sizeof(struct sim_map)) {
		snprintf(why, size, "the state file has the wrong size: remove it");
		return false;
	}
	if (m->map->magic != SIM_MAGIC || m->map->version != SIM_VERSION) {
		snprintf(why, size, "the state file is not one of this version: remove it");
		return false;
	}
	if (m->map->count != m->shape.count || strcmp(m->map->model, m->shape.model)) {
		snprintf(why, size, "this state holds a machine of %.16s:%u, not %s:%u", m->map->model,
		         m->map->count, m->shape.model, m->shape.count);
		return false;
	}
	return true;
}

bool machine_open(struct machine *m, char *why, size_t size)
{
	memset(m, 0, sizeof(*m));
	m->fd = -1;
	m->slot = SIM_NONE;
	if (!shape_read(&m->shape, why, size))
		return false;
	char folder[PATH_MAX], path[PATH_MAX + 16];
	if (!realpath(getenv("ALIQUOT_SIMULATE_STATE"), folder)) {
		snprintf(why, size, "ALIQUOT_SIMULATE_STATE: %s", strerror(errno));
		return false;
	}
	snprintf(path, sizeof(path), "%s/machine", folder);
	m->fd = open(path, O_RDWR | O_CLOEXEC);
	if (m->fd < 0 && errno == ENOENT && !create(&m->shape, folder, path))
		m->fd = open(path, O_RDWR | O_CLOEXEC);
	m->map = m->fd < 0 ? NULL : map_file(m->fd);
	if (!m->map) {
		snprintf(why, size, "cannot open the state in ALIQUOT_SIMULATE_STATE: %s", strerror(errno));
		return false;
	}
	return check(m, why, size);
}

static void add_up(struct sim_map *map)
{
	for (uint32_t g = 0; g < map->count; g++) {
		uint64_t used = 0, busy_ns = map->gpus[g].ended_ns;
		for (uint32_t i = 0; i < map->high; i++) {
			const struct sim_part *part = &map->processes[i].parts[g];
			used += map->processes[i].used ? part->bytes + part->managed : 0;
			busy_ns += map->processes[i].used ? part->busy_ns : 0;
		}
		map->gpus[g].used = used;
		map->gpus[g].busy_ns = busy_ns;
	}
}

/* In rounds: the kernel wakes one waiter for each unlock, and a waiter that is killed between its
 * waking and its taking the lock leaves the others asleep with nobody to wake them. */
static int lock_in_rounds(pthread_mutex_t *mutex)
{
	int result;
	do {
		struct timespec until;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += ROUND_NS;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		result = pthread_mutex_timedlock(mutex, &until);
	} while (result == ETIMEDOUT);
	return result;
}

void machine_lock(struct machine *m)
{
	if (lock_in_rounds(&m->map->mutex) == EOWNERDEAD) {
		add_up(m->map);
		engine_mend(m);
		pthread_mutex_consistent(&m->map->mutex);
	}
}

void machine_unlock(struct machine *m)
{
	pthread_mutex_unlock(&m->map->mutex);
}

static struct flock byte_lock(uint32_t slot, short type)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
}

pid_t machine_pid(struct machine *m, uint32_t slot)
{
	const struct sim_process *p = &m->map->processes[slot];
	if (!p->used)
		return 0;
	if (p->pid == getpid() && p->token == image_token())
		return p->pid;
	struct flock lock = byte_lock(slot, F_WRLCK);
	if (fcntl(m->fd, F_GETLK, &lock) || lock.l_type == F_UNLCK)
		return 0;
	return lock.l_pid > 0 ? lock.l_pid : p->pid;
}

/* Takes a dead process's line away; what it had of the GPUs' time stays known. */
static void bury(struct sim_map *map, struct sim_process *p)
{
	struct sim_ended *ended = &map->ended[map->ended_count % SIM_ENDED];
	ended->pid = p->pid;
	p->used = 0;
	for (uint32_t g = 0; g < map->count; g++) {
		const struct sim_part *part = &p->parts[g];
		ended->busy_ns[g] = part->busy_ns;
		map->gpus[g].ended_ns += part->busy_ns;
		map->gpus[g].used -= part->bytes + part->managed;
	}
	map->ended_count++;
}

void machine_reap(struct machine *m)
{
	for (uint32_t i = 0; i < m->map->high; i++) {
		struct sim_process *p = &m->map->processes[i];
		if (!p->used || machine_pid(m, i))
			continue;
		engine_forget(m, i);
		bury(m->map, p);
	}
}

/* A free line with its lock taken; SIM_NONE: there is none. */
static uint32_t free_slot(struct machine *m)
{
	for (uint32_t i = 0; i < SIM_MAX_PROCESSES; i++) {
		struct flock lock = byte_lock(i, F_WRLCK);
		if (!m->map->processes[i].used && !fcntl(m->fd, F_SETLK, &lock))
			return i;
	}
	return SIM_NONE;
}

bool machine_enter(struct machine *m)
{
	if (m->slot != SIM_NONE)
		return true;
	machine_lock(m);
	uint32_t slot = free_slot(m);
	if (slot == SIM_NONE) {
		machine_reap(m);
		slot = free_slot(m);
	}
	if (slot != SIM_NONE) {
		struct sim_process *p = &m->map->processes[slot];
		struct timespec now;
		clock_gettime(CLOCK_REALTIME, &now);
		memset(p->parts, 0, sizeof(p->parts[0]) * m->map->count);
		p->pid = getpid();
		p->token = image_token();
		p->since_us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
		p->used = 1;
		if (m->map->high <= slot)
			m->map->high = slot + 1;
		m->slot = slot;
	}
	machine_unlock(m);
	return slot != SIM_NONE;
}

uint64_t machine_capacity(const struct machine *m)
{
	return m->shape.memory - m->shape.reserved - BASELINE;
}

static uint64_t free_bytes(const struct machine *m, uint32_t gpu)
{
	uint64_t capacity = machine_capacity(m), used = m->map->gpus[gpu].used;
	return used < capacity ? capacity - used : 0;
}

bool machine_take(struct machine *m, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	if (free_bytes(m, gpu) < bytes)
		machine_reap(m);
	bool fits = free_bytes(m, gpu) >= bytes;
	if (fits) {
		m->map->processes[m->slot].parts[gpu].bytes += bytes;
		m->map->gpus[gpu].used += bytes;
	}
	machine_unlock(m);
	return fits;
}

void machine_give(struct machine *m, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	m->map->processes[m->slot].parts[gpu].bytes -= bytes;
	m->map->gpus[gpu].used -= bytes;
	machine_unlock(m);
}

uint64_t machine_take_managed(struct machine *m, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	if (free_bytes(m, gpu) < bytes)
		machine_reap(m);
	uint64_t room = free_bytes(m, gpu);
	uint64_t taken = bytes < room ? bytes : room;
	m->map->processes[m->slot].parts[gpu].managed += taken;
	m->map->gpus[gpu].used += taken;
	machine_unlock(m);
	return taken;
}

void machine_give_managed(struct machine *m, uint32_t gpu, uint64_t bytes)
{
	machine_lock(m);
	m->map->processes[m->slot].parts[gpu].managed -= bytes;
	m->map->gpus[gpu].used -= bytes;
	machine_unlock(m);
}

void machine_count_contexts(struct machine *m, uint32_t gpu, int change)
{
	machine_lock(m);
	m->map->processes[m->slot].parts[gpu].contexts += (uint32_t)change;
	machine_unlock(m);
}

uint64_t machine_used(struct machine *m, uint32_t gpu)
{
	machine_lock(m);
	machine_reap(m);
	uint64_t used = m->map->gpus[gpu].used;
	machine_unlock(m);
	return used + BASELINE;
}

void machine_uuid(const struct machine *m, uint32_t gpu, uint8_t uuid[16])
{
	uint64_t words[2];
	uint64_t h = m->map->seed + 0x9e3779b97f4a7c15ull * (gpu + 1);
	for (int i = 0; i < 2; i++) {
		h ^= h >> 30;
		h *= 0xbf58476d1ce4e5b9ull;
		h ^= h >> 27;
		h *= 0x94d049bb133111ebull;
		words[i] = h ^ (h >> 31);
	}
	memcpy(uuid, words, 16);
	uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40);
	uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}
