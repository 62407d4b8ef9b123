/* One tenant of the storm: threads that take and give memory in every way there is, for ever.
 *
 *     storm PATH-OF-LIBCUDA THREADS SEED
 *
 * It is meant to be killed. Out of memory is an ordinary answer; any other error ends it with 1.
 * Some fork a child first, which calls the driver once (which must refuse) and then stays, left behind,
 * when its parent is killed. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "../check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
enum { KEPT = 8 };

static void *library;
static CUcontext context;
#define CALL(name) ((__typeof__(&name))dlsym(library, #name))

static uint64_t roll(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return *seed >> 33;
}

static bool worked(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
		fprintf(stderr, "storm: %s gave %d\n", what, result);
		_exit(1);
	}
	return result == CUDA_SUCCESS;
}

static void plain(uint64_t *seed)
{
	CUdeviceptr pointers[KEPT];
	unsigned count = 0;
	while (count < KEPT &&
	       worked(CALL(cuMemAlloc_v2)(&pointers[count], roll(seed) % (24 * MIB) + 1), "cuMemAlloc"))
		count++;
	while (count-- > 0)
		worked(CALL(cuMemFree_v2)(pointers[count]), "cuMemFree");
}

static void in_stream_order(uint64_t *seed)
{
	CUdeviceptr pointer;
	if (worked(CALL(cuMemAllocAsync)(&pointer, roll(seed) % (40 * MIB) + 1, NULL),
	           "cuMemAllocAsync"))
		worked(CALL(cuMemFreeAsync)(pointer, NULL), "cuMemFreeAsync");
	worked(CALL(cuStreamSynchronize)(NULL), "cuStreamSynchronize");
}

static void physical(uint64_t *seed)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
	size_t bytes = (roll(seed) % 8 + 1) * 2 * MIB;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	if (!worked(CALL(cuMemCreate)(&handle, bytes, &properties, 0), "cuMemCreate"))
		return;
	if (worked(CALL(cuMemAddressReserve)(&address, bytes, 0, 0, 0), "cuMemAddressReserve")) {
		worked(CALL(cuMemMap)(address, bytes, 0, handle, 0), "cuMemMap");
		worked(CALL(cuMemRelease)(handle), "cuMemRelease");
		worked(CALL(cuMemUnmap)(address, bytes), "cuMemUnmap");
		worked(CALL(cuMemAddressFree)(address, bytes), "cuMemAddressFree");
	} else {
		worked(CALL(cuMemRelease)(handle), "cuMemRelease");
	}
}

static void leave_a_child_behind(void)
{
	pid_t parent = getpid();
	if (fork() != 0)
		return;
	CUdeviceptr pointer;
	CHECK(CALL(cuMemAlloc_v2)(&pointer, MIB) == CUDA_ERROR_NOT_INITIALIZED);
	/* Outlives its parent, with all that it inherited, by a moment that nobody waits for. */
	while (getppid() == parent)
		usleep(20000);
	usleep(500000);
	_exit(0);
}

static void *rage(void *argument)
{
	uint64_t seed = (uint64_t)(uintptr_t)argument;
	worked(CALL(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
	for (;;) {
		switch (roll(&seed) % 4) {
		case 0:
			in_stream_order(&seed);
			break;
		case 1:
			physical(&seed);
			break;
		default:
			plain(&seed);
		}
	}
	return NULL;
}

int main(int count, char **arguments)
{
	CHECK(count == 4);
	int threads = atoi(arguments[2]);
	uint64_t seed = strtoull(arguments[3], NULL, 10) * 1000003 + 1;
	library = dlopen(arguments[1], RTLD_NOW);
	if (!library)
		fprintf(stderr, "storm: %s\n", dlerror());
	CHECK(library);
	CHECK(CALL(cuInit)(0) == CUDA_SUCCESS);
	/* Contexts cost memory too: wait in line for one. */
	CUresult made;
	while ((made = CALL(cuDevicePrimaryCtxRetain)(&context, 0)) == CUDA_ERROR_OUT_OF_MEMORY)
		usleep(1000);
	CHECK(made == CUDA_SUCCESS);
	if (seed % 4 == 1)
		leave_a_child_behind();
	puts("raging");
	fflush(stdout);
	for (int i = 1; i < threads; i++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, rage, (void *)(uintptr_t)roll(&seed)) == 0);
	}
	rage((void *)(uintptr_t)roll(&seed));
}
