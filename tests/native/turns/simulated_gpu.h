/* A simulated GPU for the tests of turns: programs that queue quanta behind gates, one engine that runs
 * what has passed the gates, and a clock that only the test advances.
 *
 * Processes that have passed their gates at the same time share the engine in slices of a
 * millisecond, as a GPU does; to go from one to another takes as long as on an H200.
 *
 * Clients of an MPS server (`mps`) run at the same time instead, and no switch is needed between them:
 * together they are `overlap` times as fast as one alone, and each has a part of that by its greed,
 * whatever its share is. That is all: real kernels fit together well or badly, and here it is one number
 * for all. Against programs that are no clients they take turns as one process does. */
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
	bool mps;                /* it is a client of the GPU's MPS server */
	double greed;            /* its part of what clients that run at the same time get; 0: 1 */
	double says;             /* its estimates, over what its quanta take; 0: 1 */
	bool only_open;          /* it leaves its last quantum open, as one does that waits unseen */
	struct program *partner; /* on another GPU: each waits for the other to have begun the same */
	uint64_t idle_from, idle_until;
	/* what it is */
	struct contender *contender;
	struct worker worker;
	struct aliquot_credit_slice credit;
	struct aliquot_work_slice work;
	uint64_t left_ns; /* of the quantum at the engine, alone; 0: none */
	double rest_ns;   /* of a client's step: less than a nanosecond */
	unsigned in_burst;
	uint64_t thinks_until;
	uint64_t gpu_ns;         /* what it had, in time that it takes alone: the second witness */
	uint64_t beside_hard_ns; /* clients: of it, beside one with a `hard` slice */
	uint64_t asked_at, answers, answered_ns; /* bursts: asked for, done, and how long that took */
	bool stopped;
};

struct simulated_gpu {
	struct turns turns;
	struct program *programs[GPU_PROGRAMS];
	unsigned count;
	double overlap;         /* of clients that run at the same time, over one alone; 0: 1 */
	uint64_t overlapped_ns; /* the time in which several did */
	unsigned running;       /* at the engine */
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
