/* A simulated GPU for the tests of turns: programs that queue quanta behind gates, one engine that runs
 * what has passed the gates, and a clock that only the test advances.
 *
 * Processes that have passed their gates at the same time share the engine in slices of a
 * millisecond, as a GPU does; to go from one to another takes as long as on an H200. */
#ifndef TEST_SIMULATED_GPU_H
#define TEST_SIMULATED_GPU_H

#include "turns.h"

#define GPU_PROGRAMS 16u
#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SEC UINT64_C(1000000000)

struct program {
	/* how it works */
	uint64_t quantum_ns;     /* of GPU time; varies by half around it */
	unsigned depth;          /* quanta it queues ahead of the GPU */
	unsigned burst;          /* after so many it waits for all of them ... */
	uint64_t think_ns;       /* ... and then does something else for this long */
	bool never_ends;         /* its next quantum */
	bool only_open;          /* it leaves its last quantum open, as one does that waits unseen */
	struct program *partner; /* on another GPU: each waits for the other to have begun the same */
	uint64_t idle_from, idle_until;
	/* what it is */
	struct contender *contender;
	struct worker worker;
	struct aliquot_credit_slice credit;
	struct aliquot_work_slice work;
	uint64_t left_ns; /* of the quantum at the engine; 0: none */
	unsigned in_burst;
	uint64_t thinks_until;
	uint64_t gpu_ns;                         /* what it had: the second witness */
	uint64_t asked_at, answers, answered_ns; /* bursts: asked for, done, and how long that took */
	bool stopped;
};

struct simulated_gpu {
	struct turns turns;
	struct program *programs[GPU_PROGRAMS];
	unsigned count;
	unsigned running; /* at the engine */
	uint64_t slice_until, switch_until;
	uint64_t now, look_at;
	uint64_t looks;
	unsigned seed;
};

void simulated_gpu_init(struct simulated_gpu *gpu, unsigned seed);
void simulated_gpu_add(struct simulated_gpu *gpu, struct program *program,
                       struct contender *contender);
void simulated_gpu_run(struct simulated_gpu *gpu, uint64_t ns);
/* Two at the same time. */
void simulated_gpus_run(struct simulated_gpu *one, struct simulated_gpu *other, uint64_t ns);

/* Part of the GPU time that a program had between two points, of all that was had. */
double simulated_gpu_part(const struct simulated_gpu *gpu, const struct program *program,
                          const uint64_t *before);
void simulated_gpu_note(const struct simulated_gpu *gpu, uint64_t *gpu_ns);

#endif
