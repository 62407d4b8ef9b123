#define _GNU_SOURCE
#include "exported.h"

#include "cancel.h"
#include "map.h"
#include "session.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK /* older than Linux 3.15's headers */
#define F_OFD_SETLK 37
#endif

#define SOMETIMES_NS (UINT64_C(10) * 1000 * 1000)
/* A look may take the kernel some milliseconds, in which no process of the machine can lock a file:
 * after one, none is made for so many times as long, unless memory is needed. */
#define REST 50

/* Released, but held by a descriptor when we last looked. */
struct held_memory {
	uint64_t key; /* its mark */
	uint64_t bytes;
	uint32_t slice;
	uint32_t look; /* the last look that saw its descriptor open */
};

MAP_OF(held_map, struct held_memory)

static struct held_map held;
static struct aliquot_lock looking; /* one thread at a time looks or adds */
static uint32_t looks;
static _Atomic bool holds;          /* `held` is not empty */
static _Atomic uint64_t look_at_ns; /* no look before that time, unless memory is needed */

/* A byte that no other memory of the machine has: 62 bits, since the kernel's offsets are signed. */
static uint64_t new_mark(void)
{
	static _Atomic uint64_t count;
	uint64_t mark, number = atomic_fetch_add(&count, 1) + 1;
	memcpy(&mark, (const void *)getauxval(AT_RANDOM), sizeof(mark));
	mark ^= (uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15);
	mark = ((mark ^ mark >> 29) + number) * UINT64_C(0xbf58476d1ce4e5b9);
	mark = (mark ^ mark >> 31) >> 2;
	return mark ? mark : 1;
}

uint64_t exported_descriptor(uint64_t mark, int descriptor)
{
	if (mark == EXPORTED_FOR_EVER)
		return mark;
	if (mark == EXPORTED_NOT)
		mark = new_mark();
	struct flock lock = {.l_type = F_RDLCK,
	                     .l_whence = SEEK_SET,
	                     .l_start = (off_t)mark,
	                     .l_len = 1};
	return fcntl(descriptor, F_OFD_SETLK, &lock) == 0 ? mark : EXPORTED_FOR_EVER;
}

/* One line: "1: OFDLCK ADVISORY  READ  -1 00:06:142 START END", where START is the mark. */
static void see_line(const char *line)
{
	const char *at = strstr(line, "OFDLCK");
	for (unsigned words = 0; at && words < 5; words++) {
		at = strchr(at, ' ');
		at += at ? strspn(at, " ") : 0;
	}
	if (!at)
		return;
	held_map_lock(&held);
	struct held_memory *memory = held_map_find(&held, strtoull(at, NULL, 10));
	if (memory)
		memory->look = looks;
	held_map_unlock(&held);
}

/* False: the kernel does not say, and everything counts as open. */
static bool look_at_locks(void)
{
	char text[4096];
	size_t kept = 0;
	ssize_t got;
	int file = open("/proc/locks", O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return false;
	while ((got = read(file, text + kept, sizeof(text) - 1 - kept)) > 0) {
		char *line = text, *end;
		text[kept + (size_t)got] = '\0';
		for (; (end = strchr(line, '\n')); line = end + 1) {
			*end = '\0';
			see_line(line);
		}
		kept = strlen(line);
		if (kept == sizeof(text) - 1)
			kept = 0; /* no line of the kernel's is that long */
		memmove(text, line, kept);
	}
	close(file);
	return got == 0;
}

/* Take one that the last look did not see; false: there is none. */
static bool take_unseen(struct held_memory *out)
{
	bool found = false;
	held_map_lock(&held);
	for (uint64_t place = 0; place < held.map.capacity && !found; place++) {
		struct held_memory *memory = held_map_at(&held, place);
		if (memory && memory->look != looks) {
			*out = *memory;
			held_map_remove(&held, memory);
			found = true;
		}
	}
	held_map_unlock(&held);
	return found;
}

static uint64_t now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The look reads files: no thread may be cancelled in it, and a forked child may find the lock
 * taken. */
bool exported_settle(void)
{
	struct held_memory memory;
	bool freed = false;
	if (!atomic_load_explicit(&holds, memory_order_relaxed) || !session_is_open())
		return false;
	int cancel = cancel_disable();
	aliquot_lock(&looking);
	uint64_t begun = now_ns();
	looks++;
	if (look_at_locks())
		for (; take_unseen(&memory); freed = true)
			session_release(memory.slice, memory.bytes);
	atomic_store(&holds, held.map.used != 0);
	uint64_t ended = now_ns(), rest = (ended - begun) * REST;
	atomic_store(&look_at_ns, ended + (rest > SOMETIMES_NS ? rest : SOMETIMES_NS));
	aliquot_unlock(&looking);
	cancel_restore(cancel);
	return freed;
}

void exported_settle_sometimes(void)
{
	if (atomic_load_explicit(&holds, memory_order_relaxed) && now_ns() >= atomic_load(&look_at_ns))
		exported_settle();
}

void exported_release(uint64_t mark, uint32_t slice, uint64_t bytes)
{
	struct held_memory memory = {.key = mark, .bytes = bytes, .slice = slice}, replaced;
	if (mark == EXPORTED_NOT)
		session_release(slice, bytes);
	if (mark == EXPORTED_NOT || mark == EXPORTED_FOR_EVER || bytes == 0)
		return;
	aliquot_lock(&looking); /* a look that has begun knows nothing of this memory */
	held_map_put(&held, &memory, &replaced);
	atomic_store(&holds, true);
	aliquot_unlock(&looking);
	exported_settle();
}
