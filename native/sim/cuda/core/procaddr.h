/* The table behind cuGetProcAddress, which generate.py writes from cuda/procaddr.txt. */
#ifndef SIM_PROCADDR_H
#define SIM_PROCADDR_H

#include <stddef.h>

/* Sorted by name, then per_thread, then version. */
struct sim_proc {
	const char *name;
	int per_thread;
	int version; /* the first CUDA version that gets this function */
	void *function;
};

extern const struct sim_proc sim_procs[];
extern const size_t sim_proc_count;

#endif
