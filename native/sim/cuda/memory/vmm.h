/* Physical memory by handle, as vmm.c and vmm_export.c see it. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "cuda/memory/memory.h"

struct sim_physical {
	uint64_t size, offset; /* in its file */
	int fd;
	bool own_file, imported;
	uint64_t share; /* since its first export: see machine_share */
	int handles, mappings;
	CUmemAllocationProp properties;
	uint32_t gpu;
	struct sim_physical *next; /* by offset */
};

/* Bytes behind those of memory that can be exported, in its file. */
#define PHYSICAL_LABEL 24u

#endif
