/* cuGetProcAddress: the function for a name and a CUDA version, as NVIDIA's driver answers. */
#include "cuda/core/procaddr.h"

#include "cuda/core/sim.h"

#include <string.h>

#define FLAGS (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

/* The first entry whose name is not less than `name`. */
static size_t find(const char *name)
{
	size_t low = 0, high = sim_proc_count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (strcmp(sim_procs[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
	if (!name || !function || flags & ~(cuuint64_t)FLAGS || flags == FLAGS ||
	    version > SIM_DRIVER_VERSION)
		return CUDA_ERROR_INVALID_VALUE;
	int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
	CUdriverProcAddressQueryResult answer = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	*function = NULL;
	for (size_t i = find(name); i < sim_proc_count && !strcmp(sim_procs[i].name, name); i++) {
		if (answer == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
			answer = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		if (sim_procs[i].per_thread != per_thread || sim_procs[i].version > version)
			continue;
		answer = CU_GET_PROC_ADDRESS_SUCCESS;
		*function = sim_procs[i].function;
	}
	if (status)
		*status = answer;
	return answer && !status ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

/* The first version has no status: if nothing is found it fails, and does not change *function. */
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
	void *found;
	CUdriverProcAddressQueryResult status;
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(cuGetProcAddress_v2(name, &found, version, flags, &status));
	if (status)
		return CUDA_ERROR_NOT_FOUND;
	*function = found;
	return CUDA_SUCCESS;
}
