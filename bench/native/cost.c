/* What a call costs through the stand-in, over the same call on the stub: in nanoseconds.
 *
 *     cost PATH-OF-STUB      inside a grant, with ALIQUOT_DRIVER_DIR the stub's folder
 *
 * Rounds of the two alternate; each line is one pair of rounds, for cost.py to take the median. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 41, CALLS = 200000 };

struct driver {
	__typeof__(&cuInit) init;
	__typeof__(&cuMemAlloc_v2) allocate;
	__typeof__(&cuMemFree_v2) release;
	__typeof__(&cuLaunchKernel) launch;
};

static struct driver open_driver(void *library)
{
	struct driver driver = {dlsym(library, "cuInit"), dlsym(library, "cuMemAlloc_v2"),
	                        dlsym(library, "cuMemFree_v2"), dlsym(library, "cuLaunchKernel")};
	if (!driver.init || driver.init(0) != CUDA_SUCCESS) {
		fprintf(stderr, "cost: the driver does not start\n");
		exit(1);
	}
	return driver;
}

static double now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double launches(const struct driver *driver)
{
	double start = now_ns();
	for (unsigned i = 0; i < CALLS; i++)
		driver->launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	return (now_ns() - start) / CALLS;
}

/* One allocation and its release, halved: the bar is for one hooked call. */
static double allocations(const struct driver *driver)
{
	CUdeviceptr pointers[64];
	double start = now_ns();
	for (unsigned i = 0; i < CALLS / 64; i++) {
		for (unsigned j = 0; j < 64; j++)
			if (driver->allocate(&pointers[j], 4096) != CUDA_SUCCESS)
				exit(2);
		for (unsigned j = 0; j < 64; j++)
			driver->release(pointers[j]);
	}
	return (now_ns() - start) / (CALLS / 64 * 64) / 2;
}

int main(int count, char **arguments)
{
	void *stub = count == 2 ? dlmopen(LM_ID_BASE, arguments[1], RTLD_NOW) : NULL;
	void *stand_in = dlopen("libcuda.so.1", RTLD_NOW);
	if (!stub || !stand_in || stub == stand_in) {
		fprintf(stderr, "cost: %s\n", stub ? "the stand-in was not found first" : "no stub");
		return 1;
	}
	struct driver direct = open_driver(stub), through = open_driver(stand_in);
	for (unsigned i = 0; i < ROUNDS; i++)
		printf("launch %.2f %.2f\nallocation %.2f %.2f\n", launches(&direct), launches(&through),
		       allocations(&direct), allocations(&through));
	return 0;
}
