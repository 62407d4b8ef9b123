#include "host_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Newer than the C library's headers may be. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + HOST_MEMORY_STEP - 1) / HOST_MEMORY_STEP * HOST_MEMORY_STEP;
}

/* A line of /proc/meminfo, in bytes; 0: the kernel does not say. */
static uint64_t read_meminfo(const char *name)
{
	char line[128];
	uint64_t kib = 0;
	FILE *file = fopen("/proc/meminfo", "re");
	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			kib = strtoull(line + strlen(name) + 1, NULL, 10);
	if (file)
		fclose(file);
	return kib << 10;
}

static bool host_has_room(struct fault *fault)
{
	uint64_t total = read_meminfo("MemTotal"), free = read_meminfo("MemAvailable");
	if (free >= total / 10 + HOST_MEMORY_STEP)
		return true;
	return fault_set(fault, ALIQUOT_MOVE_HOST_FULL,
	                 "the host has %llu MiB free, and %llu MiB must stay free", fault_mib(free),
	                 fault_mib(total / 10));
}

/* One process of all movers at a time; a killed one lets go. */
static void lock_machine(struct host_memory *memory, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
	while (fcntl(memory->arenas_file, F_SETLKW, &lock) && errno == EINTR)
		;
}

static bool is_below_limit(const struct host_memory *memory, struct fault *fault)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++)
		sum += atomic_load(&memory->arenas[i].grown_bytes);
	if (sum + HOST_MEMORY_STEP <= memory->most_bytes)
		return true;
	return fault_set(fault, ALIQUOT_MOVE_HOST_FULL,
	                 "%llu MiB of the host are in use for GPU memory, of %llu MiB", fault_mib(sum),
	                 fault_mib(memory->most_bytes));
}

/* Maps one step of the file and provides its memory. 0, or -errno. */
static int map_step(struct host_memory *memory, uint64_t offset)
{
	char *at = memory->base + offset;
	void *map = mmap(at, HOST_MEMORY_STEP, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
	                 memory->data, (off_t)offset);
	if (map == MAP_FAILED)
		return -errno;
	madvise(at, HOST_MEMORY_STEP, MADV_HUGEPAGE);
	madvise(at, HOST_MEMORY_STEP, MADV_DONTFORK);
	if (!madvise(at, HOST_MEMORY_STEP, MADV_POPULATE_WRITE))
		return 0;
	if (errno != EINVAL)
		return -errno;
	/* An older kernel. */
	return fallocate(memory->data, 0, (off_t)offset, (off_t)HOST_MEMORY_STEP) ? -errno : 0;
}

static void unmap_steps(struct host_memory *memory, uint64_t from, uint64_t to)
{
	if (from < to)
		mmap(memory->base + from, to - from, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

bool host_memory_open(struct host_memory *memory, struct gpu *gpu, struct aliquot_arena *arenas,
                      unsigned number, int arenas_file, int data, uint64_t most_bytes)
{
	struct stat status;
	*memory = (struct host_memory){
		.gpu = gpu,
		.arenas = arenas,
		.own = &arenas[number],
		.arenas_file = arenas_file,
		.data = data,
		.most_bytes = most_bytes,
	};
	pthread_mutex_init(&memory->lock, NULL);
	if (fstat(data, &status))
		return false;
	/* An incomplete step is of a mover that was killed while it grew. */
	uint64_t bytes = (uint64_t)status.st_size / HOST_MEMORY_STEP * HOST_MEMORY_STEP;
	memory->reserved_bytes = round_up(bytes > most_bytes ? bytes : most_bytes);
	/* From a whole step on, so that the end of a step is seen in an address. */
	uint64_t room = memory->reserved_bytes + HOST_MEMORY_STEP;
	char *at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	memory->registered = calloc(memory->reserved_bytes / HOST_MEMORY_STEP + 1,
	                            sizeof(*memory->registered));
	if (at == MAP_FAILED || !memory->registered)
		return false;
	memory->base = (char *)round_up((uintptr_t)at);
	for (uint64_t offset = 0; offset < bytes; offset += HOST_MEMORY_STEP) {
		int error = map_step(memory, offset);
		if (error) {
			errno = -error;
			return false;
		}
	}
	atomic_store(&memory->bytes, bytes);
	atomic_store(&memory->own->grown_bytes, bytes);
	atomic_store(&memory->own->registered_bytes, 0);
	return true;
}

static void register_step(struct host_memory *memory, uint64_t step)
{
	atomic_bool *registered = &memory->registered[step];
	if (atomic_load(registered) ||
	    !gpu_register(memory->gpu, memory->base + step * HOST_MEMORY_STEP, HOST_MEMORY_STEP))
		return;
	atomic_store(registered, true);
	atomic_fetch_add(&memory->own->registered_bytes, HOST_MEMORY_STEP);
}

static bool add_step(struct host_memory *memory, struct fault *fault)
{
	uint64_t bytes = atomic_load(&memory->bytes);
	lock_machine(memory, F_WRLCK);
	bool allowed = is_below_limit(memory, fault) && host_has_room(fault);
	int error = 0;
	if (allowed && ftruncate(memory->data, (off_t)(bytes + HOST_MEMORY_STEP)))
		error = -errno;
	if (allowed && !error)
		atomic_store(&memory->own->grown_bytes, bytes + HOST_MEMORY_STEP);
	lock_machine(memory, F_UNLCK);
	if (!allowed)
		return false;
	if (!error)
		error = map_step(memory, bytes);
	if (!error) {
		register_step(memory, bytes / HOST_MEMORY_STEP);
		atomic_store(&memory->bytes, bytes + HOST_MEMORY_STEP);
		return true;
	}
	unmap_steps(memory, bytes, bytes + HOST_MEMORY_STEP);
	int ignored = ftruncate(memory->data, (off_t)bytes);
	(void)ignored;
	atomic_store(&memory->own->grown_bytes, bytes);
	return fault_set(fault, ALIQUOT_MOVE_HOST_FULL, "the host gives no more memory: %s",
	                 strerror(-error));
}

bool host_memory_grow(struct host_memory *memory, uint64_t from, struct fault *fault)
{
	pthread_mutex_lock(&memory->lock);
	bool grown = atomic_load(&memory->bytes) > from || add_step(memory, fault);
	pthread_mutex_unlock(&memory->lock);
	return grown;
}

void host_memory_shrink(struct host_memory *memory, uint64_t to)
{
	pthread_mutex_lock(&memory->lock);
	uint64_t bytes = atomic_load(&memory->bytes);
	to = round_up(to);
	for (uint64_t at = to; at < bytes; at += HOST_MEMORY_STEP) {
		if (!atomic_exchange(&memory->registered[at / HOST_MEMORY_STEP], false))
			continue;
		gpu_unregister(memory->gpu, memory->base + at);
		atomic_fetch_sub(&memory->own->registered_bytes, HOST_MEMORY_STEP);
	}
	if (to < bytes) {
		atomic_store(&memory->bytes, to);
		unmap_steps(memory, to, bytes);
		int ignored = ftruncate(memory->data, (off_t)to);
		(void)ignored;
		atomic_store(&memory->own->grown_bytes, to);
	}
	pthread_mutex_unlock(&memory->lock);
}

void host_memory_register(struct host_memory *memory, uint64_t offset, uint64_t bytes)
{
	uint64_t end = (offset + bytes + HOST_MEMORY_STEP - 1) / HOST_MEMORY_STEP;
	for (uint64_t step = offset / HOST_MEMORY_STEP; step < end; step++) {
		if (atomic_load(&memory->registered[step]))
			continue;
		pthread_mutex_lock(&memory->lock);
		register_step(memory, step);
		pthread_mutex_unlock(&memory->lock);
	}
}
