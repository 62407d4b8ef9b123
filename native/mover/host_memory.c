#include "host_memory.h"

#include "aliquot/host.h"
#include "watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Newer than the C library's headers may be. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* How long others have to give memory back: they look twice a second. */
#define LACKING_MS 5000
#define LACKING_LOOK_MS 20

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + HOST_MEMORY_STEP - 1) / HOST_MEMORY_STEP * HOST_MEMORY_STEP;
}

static uint64_t above(uint64_t value, uint64_t least)
{
	return value > least ? value - least : 0;
}

static bool host_has_room(struct fault *fault)
{
	struct aliquot_host host = aliquot_host_read();
	if (aliquot_host_room(&host) >= HOST_MEMORY_STEP)
		return true;
	return fault_set(fault, ALIQUOT_MOVE_HOST_FULL,
	                 "the host has %llu MiB free, and %llu MiB must stay free",
	                 fault_mib(host.available_bytes), fault_mib(aliquot_host_spare(&host)));
}

/* One process of all movers at a time; a killed one lets go. */
static void lock_machine(struct host_memory *memory, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_len = 1};
	while (fcntl(memory->arenas_file, F_SETLKW, &lock) && errno == EINTR)
		;
}

/* What all movers together have, and what programs may have of the host in place of a GPU's memory. */
static uint64_t taken_bytes(const struct host_memory *memory)
{
	uint64_t sum = atomic_load(&memory->arenas[0].spill_bytes);
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++)
		sum += atomic_load(&memory->arenas[i].grown_bytes);
	return sum;
}

static bool is_below_limit(const struct host_memory *memory, struct fault *fault)
{
	uint64_t sum = taken_bytes(memory);
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
		watch_step();
		if (error) {
			errno = -error;
			return false;
		}
	}
	atomic_store(&memory->bytes, bytes);
	atomic_store(&memory->own->grown_bytes, bytes);
	atomic_store(&memory->own->registered_bytes, 0);
	atomic_store(&memory->own->lacking_bytes, 0);
	return true;
}

static void register_step(struct host_memory *memory, uint64_t step)
{
	atomic_bool *registered = &memory->registered[step];
	watch_step();
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

/* Whether the mover of another GPU has memory that no copy needs. */
static bool others_can_give(const struct host_memory *memory)
{
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++) {
		const struct aliquot_arena *other = &memory->arenas[i];
		if (other != memory->own &&
		    atomic_load(&other->grown_bytes) >= atomic_load(&other->held_bytes) + HOST_MEMORY_STEP)
			return true;
	}
	return false;
}

/* Shows that a thread lacks memory: so much, and what its GPU's programs will need after it. */
static void begin_lacking(struct host_memory *memory, uint64_t bytes)
{
	struct aliquot_arena *own = memory->own;
	pthread_mutex_lock(&memory->lock);
	uint64_t later = above(atomic_load(&own->wanted_bytes), atomic_load(&own->grown_bytes));
	atomic_store(&own->lacking_bytes, round_up(bytes > later ? bytes : later));
	memory->waiting++;
	pthread_mutex_unlock(&memory->lock);
}

static void end_lacking(struct host_memory *memory)
{
	pthread_mutex_lock(&memory->lock);
	if (!--memory->waiting)
		atomic_store(&memory->own->lacking_bytes, 0);
	pthread_mutex_unlock(&memory->lock);
}

bool host_memory_obtain(struct host_memory *memory, uint64_t from, uint64_t bytes,
                        struct fault *fault)
{
	const struct timespec moment = {.tv_nsec = LACKING_LOOK_MS * 1000000L};
	bool grown = host_memory_grow(memory, from, fault);
	if (grown || !others_can_give(memory))
		return grown;
	begin_lacking(memory, bytes);
	for (unsigned i = 0; !grown && i < LACKING_MS / LACKING_LOOK_MS; i++) {
		nanosleep(&moment, NULL);
		watch_step();
		grown = host_memory_grow(memory, from, fault);
	}
	end_lacking(memory);
	return grown;
}

uint64_t host_memory_lacked_by_others(const struct host_memory *memory)
{
	uint64_t lacked = 0;
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++)
		lacked += atomic_load(&memory->arenas[i].lacking_bytes);
	if (!lacked || atomic_load(&memory->own->lacking_bytes))
		return 0;
	struct aliquot_host host = aliquot_host_read();
	uint64_t allowed = above(memory->most_bytes, taken_bytes(memory));
	uint64_t room = aliquot_host_room(&host);
	return above(lacked, allowed < room ? allowed : room);
}

void host_memory_shrink(struct host_memory *memory, uint64_t to)
{
	pthread_mutex_lock(&memory->lock);
	uint64_t bytes = atomic_load(&memory->bytes);
	to = round_up(to);
	for (uint64_t at = to; at < bytes; at += HOST_MEMORY_STEP) {
		if (!atomic_exchange(&memory->registered[at / HOST_MEMORY_STEP], false))
			continue;
		watch_step();
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
