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
	__typeof__(&cuCtxCreate_v2) create_context;
	__typeof__(&cuStreamCreate) create_stream;
	__typeof__(&cuStreamQuery) query;
	__typeof__(&cuMemAlloc_v2) allocate;
	__typeof__(&cuMemFree_v2) release;
	__typeof__(&cuLaunchKernel) launch;
};

static struct driver open_driver(void *library)
{
	struct driver driver = {.init = dlsym(library, "cuInit"),
	                        .create_context = dlsym(library, "cuCtxCreate_v2"),
	                        .create_stream = dlsym(library, "cuStreamCreate"),
	                        .query = dlsym(library, "cuStreamQuery"),
	                        .allocate = dlsym(library, "cuMemAlloc_v2"),
	                        .release = dlsym(library, "cuMemFree_v2"),
	                        .launch = dlsym(library, "cuLaunchKernel")};
	CUcontext context;
	if (!driver.init || driver.init(0) != CUDA_SUCCESS ||
	    driver.create_context(&context, 0, 0) != CUDA_SUCCESS) {
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

/* The quanta that they fill are counted in, with their gates and marks. */
static double launches(const struct driver *driver, CUstream stream)
{
	CUfunction function = (CUfunction)(uintptr_t)0x2000;
	double start = now_ns();
	for (unsigned i = 0; i < CALLS; i++)
		driver->launch(function, 8, 8, 1, 128, 1, 1, 0, stream, NULL, NULL);
	return (now_ns() - start) / CALLS;
}

static double queries(const struct driver *driver)
{
	double start = now_ns();
	for (unsigned i = 0; i < CALLS; i++)
		driver->query(NULL);
	return (now_ns() - start) / CALLS;
}

struct pair {
	double allocation, release;
};

static struct pair allocations(const struct driver *driver)
{
	CUdeviceptr pointers[64];
	struct pair sum = {0};
	for (unsigned i = 0; i < CALLS / 64; i++) {
		double start = now_ns();
		for (unsigned j = 0; j < 64; j++)
			if (driver->allocate(&pointers[j], 4096) != CUDA_SUCCESS)
				exit(2);
		double between = now_ns();
		for (unsigned j = 0; j < 64; j++)
			driver->release(pointers[j]);
		sum.allocation += between - start;
		sum.release += now_ns() - between;
	}
	return (struct pair){sum.allocation / CALLS, sum.release / CALLS};
}

int main(int count, char **arguments)
{
	void *stub = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
	void *stand_in = dlopen("libcuda.so.1", RTLD_NOW);
	if (!stub || !stand_in || stub == stand_in) {
		fprintf(stderr, "cost: %s\n", stub ? "the stand-in was not found first" : "no stub");
		return 1;
	}
	struct driver direct = open_driver(stub), through = open_driver(stand_in);
	CUstream stream;
	through.create_stream(&stream, CU_STREAM_NON_BLOCKING);
	for (unsigned i = 0; i < ROUNDS; i++) {
		printf("launch %.2f %.2f\n", launches(&direct, stream), launches(&through, stream));
		printf("launch-default %.2f %.2f\n", launches(&direct, NULL), launches(&through, NULL));
		printf("query %.2f %.2f\n", queries(&direct), queries(&through));
		struct pair first = allocations(&direct), second = allocations(&through);
		printf("allocation %.2f %.2f\n", first.allocation, second.allocation);
		printf("release %.2f %.2f\n", first.release, second.release);
	}
	return 0;
}
