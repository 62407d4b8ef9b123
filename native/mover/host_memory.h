/* The data file of the arena: memory of the host, mapped and registered with the driver in steps.
 *
 * It grows when it must, and ahead of need in the background, because the kernel provides
 * 2 GiB a second and the GPU copies 50. A step is mapped and registered once and stays: programs that
 * leave and return use it again.
 *
 * It grows only while the movers of all GPUs together have less than the machine's limit and the host
 * has a tenth of its memory to spare after it. Memory that is needed now goes before memory that may be
 * needed: a mover whose programs lack some says so in its arena, and the movers of other GPUs give back what no
 * copy needs and take no more ahead of need.
 *
 * Any thread may call these functions.
 */
#ifndef MOVER_HOST_MEMORY_H
#define MOVER_HOST_MEMORY_H

#include "aliquot/arena.h"
#include "gpu.h"

#define HOST_MEMORY_STEP (UINT64_C(64) << 20)

struct host_memory {
	struct gpu *gpu;
	struct aliquot_arena *arenas, *own; /* all of the machine; the one of this mover */
	int arenas_file, data;
	uint64_t most_bytes; /* of all movers together */
	char *base;
	uint64_t reserved_bytes; /* of addresses, from base on */
	pthread_mutex_t lock;
	unsigned waiting;        /* with the lock: threads that lack memory */
	_Atomic uint64_t bytes;  /* of the file that are mapped: whole steps */
	atomic_bool *registered; /* by step */
};

/* Maps what the file has already. False: it cannot, and errno says why. */
bool host_memory_open(struct host_memory *memory, struct gpu *gpu, struct aliquot_arena *arenas,
                      unsigned number, int arenas_file, int data, uint64_t most_bytes);

/* Adds one step, if the file still has `from` bytes; else somebody else has. */
bool host_memory_grow(struct host_memory *memory, uint64_t from, struct fault *fault);
/* The same for `bytes` that a program needs now: waits for other movers if these can give some back. */
bool host_memory_obtain(struct host_memory *memory, uint64_t from, uint64_t bytes,
                        struct fault *fault);

/* What programs of other GPUs lack, beyond what is free for them; 0: nothing, or this mover's do too. */
uint64_t host_memory_lacked_by_others(const struct host_memory *memory);

/* Gives back all steps from there on, of which nobody uses any part. */
void host_memory_shrink(struct host_memory *memory, uint64_t to);

/* Registers what is not registered yet of that part. If that fails, copies are slower. */
void host_memory_register(struct host_memory *memory, uint64_t offset, uint64_t bytes);

static inline void *host_memory_at(const struct host_memory *memory, uint64_t offset)
{
	return memory->base + offset;
}

#endif
