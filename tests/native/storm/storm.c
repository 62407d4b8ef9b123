/* One tenant of the storm: threads that take and give memory in every way there is, for ever.
 *
 *     storm PATH-OF-LIBCUDA THREADS SEED
 *
 * It is meant to be killed. Out of memory is an ordinary answer; any other error ends it with 1.
 * Some fork a child first, which calls the driver (which must refuse) and then stays, left behind
 * when its parent is killed, with all that it inherited, until standard input ends. */
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

static CUcontext context;

/* Looked up once: a look-up takes the dynamic linker's lock, which would keep threads in step. */
/* clang-format off */
#define FUNCTIONS(X) \
	X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) \
	X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemAllocManaged) X(cuMemFree_v2) \
	X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuStreamSynchronize) \
	X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemAllocFromPoolAsync) \
	X(cuMemCreate) X(cuMemRelease) X(cuMemRetainAllocationHandle) \
	X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) \
	X(cuArrayCreate_v2) X(cuArrayDestroy)
/* clang-format on */
#define POINTER(name) __typeof__(&name) name;
static struct {
	FUNCTIONS(POINTER)
} call;

static void look_up(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);
	if (!library)
		fprintf(stderr, "storm: %s\n", dlerror());
	CHECK(library);
#define LOOK_UP(name) CHECK((call.name = (__typeof__(&name))dlsym(library, #name)));
	FUNCTIONS(LOOK_UP)
}

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

#define WORKED(name, ...) worked(call.name(__VA_ARGS__), #name)

/* Anything from a byte to pages, so that both ways of laying memory out are raced for. */
static size_t some_bytes(uint64_t *seed)
{
	return roll(seed) % 4 ? roll(seed) % (24 * MIB) + 1 : roll(seed) % 4096 + 1;
}

static void plain(uint64_t *seed)
{
	CUdeviceptr pointers[KEPT];
	unsigned count = 0;
	while (count < KEPT && WORKED(cuMemAlloc_v2, &pointers[count], some_bytes(seed)))
		count++;
	while (count-- > 0)
		WORKED(cuMemFree_v2, pointers[count]);
}

static void pitched_and_managed(uint64_t *seed)
{
	CUdeviceptr pitched, managed;
	size_t pitch;
	bool first = WORKED(cuMemAllocPitch_v2, &pitched, &pitch, roll(seed) % 4096 + 1,
	                    roll(seed) % 2048 + 1, 4);
	bool second = WORKED(cuMemAllocManaged, &managed, some_bytes(seed), CU_MEM_ATTACH_GLOBAL);
	if (first)
		WORKED(cuMemFree_v2, pitched);
	if (second)
		WORKED(cuMemFree_v2, managed);
}

static void in_stream_order(uint64_t *seed)
{
	CUdeviceptr pointer;
	if (WORKED(cuMemAllocAsync, &pointer, roll(seed) % (40 * MIB) + 1, NULL))
		WORKED(cuMemFreeAsync, pointer, NULL);
	WORKED(cuStreamSynchronize, NULL);
}

static void in_a_pool(uint64_t *seed)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
	CUmemoryPool pool;
	CUdeviceptr pointer;
	if (!WORKED(cuMemPoolCreate, &pool, &properties))
		return;
	if (WORKED(cuMemAllocFromPoolAsync, &pointer, roll(seed) % (40 * MIB) + 1, pool, NULL))
		WORKED(cuMemFree_v2, pointer);
	WORKED(cuMemPoolDestroy, pool);
}

static void physical(uint64_t *seed)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}};
	size_t bytes = (roll(seed) % 8 + 1) * 2 * MIB;
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr address;
	if (!WORKED(cuMemCreate, &handle, bytes, &properties, 0))
		return;
	if (WORKED(cuMemAddressReserve, &address, bytes, 0, 0, 0)) {
		WORKED(cuMemMap, address, bytes, 0, handle, 0);
		WORKED(cuMemRelease, handle);
		if (WORKED(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)address))
			WORKED(cuMemRelease, again);
		WORKED(cuMemUnmap, address, bytes);
		WORKED(cuMemAddressFree, address, bytes);
	} else {
		WORKED(cuMemRelease, handle);
	}
}

static void arrays(uint64_t *seed)
{
	CUDA_ARRAY_DESCRIPTOR wanted = {.Width = roll(seed) % 1024 + 1,
	                                .Height = roll(seed) % 1024 + 1,
	                                .Format = CU_AD_FORMAT_FLOAT,
	                                .NumChannels = 4};
	CUarray array;
	if (WORKED(cuArrayCreate_v2, &array, &wanted))
		WORKED(cuArrayDestroy, array);
}

/* A context that ends with memory in it. */
static void another_context(uint64_t *seed)
{
	CUcontext other;
	CUdeviceptr pointer;
	if (!WORKED(cuCtxCreate_v2, &other, 0, 0))
		return;
	WORKED(cuMemAlloc_v2, &pointer, some_bytes(seed));
	WORKED(cuCtxDestroy_v2, other);
	WORKED(cuCtxSetCurrent, context);
}

static void *rage(void *argument)
{
	static void (*const ways[])(
		uint64_t *) = {plain,           plain,     plain,    plain, pitched_and_managed,
		               in_stream_order, in_a_pool, physical, arrays};
	uint64_t seed = (uint64_t)(uintptr_t)argument;
	WORKED(cuCtxSetCurrent, context);
	for (;;) {
		if (roll(&seed) % 256 == 0)
			another_context(&seed);
		ways[roll(&seed) % (sizeof(ways) / sizeof(*ways))](&seed);
	}
	return NULL;
}

static void leave_a_child_behind(void)
{
	if (fork() != 0)
		return;
	CUdeviceptr pointer;
	char byte;
	CHECK(call.cuMemAlloc_v2(&pointer, MIB) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(call.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
}

static void *begin(void *unused)
{
	CHECK(call.cuInit(0) == CUDA_SUCCESS);
	return unused;
}

/* The first call is raced for as well. */
static void begin_together(void)
{
	pthread_t other;
	CHECK(pthread_create(&other, NULL, begin, NULL) == 0);
	begin(NULL);
	CHECK(pthread_join(other, NULL) == 0);
}

int main(int count, char **arguments)
{
	CHECK(count == 4);
	int threads = atoi(arguments[2]);
	uint64_t seed = strtoull(arguments[3], NULL, 10);
	bool with_child = seed % 8 == 0;
	look_up(arguments[1]);
	begin_together();
	/* Contexts cost memory too: wait in line for one. */
	CUresult made;
	while ((made = call.cuDevicePrimaryCtxRetain(&context, 0)) == CUDA_ERROR_OUT_OF_MEMORY)
		usleep(1000);
	CHECK(made == CUDA_SUCCESS);
	if (with_child)
		leave_a_child_behind();
	CHECK(write(STDOUT_FILENO, ".", 1) == 1);
	for (int i = 1; i < threads; i++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, rage, (void *)(uintptr_t)roll(&seed)) == 0);
	}
	rage((void *)(uintptr_t)roll(&seed));
}
