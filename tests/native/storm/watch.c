/* Watches a slice on GPU 0 as fast as it can, until standard input ends.
 *
 *     watch PATH-OF-NVML LIMITS USAGE
 *
 * Prints "looks, most that the ledger told, most that NVML told for all processes, most that NVML
 * told for the GPU beyond what it had at first" and, of each, the limit. */
#define _GNU_SOURCE
#include "aliquot/layout.h"

#include "../check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <nvml.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

/* As in ledger.c. */
#define UNITS_MASK ((UINT64_C(1) << 38) - 1)

static const void *map(const char *path, size_t size)
{
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	const void *memory = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(memory != MAP_FAILED);
	close(fd);
	return memory;
}

static struct {
	nvmlReturn_t (*init)(void);
	nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *);
	nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *);
	nvmlReturn_t (*processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
} nvml;

static uint64_t by_process(nvmlDevice_t gpu)
{
	static nvmlProcessInfo_t infos[4096];
	unsigned count = sizeof(infos) / sizeof(*infos);
	uint64_t sum = 0;
	CHECK(nvml.processes(gpu, &count, infos) == NVML_SUCCESS);
	for (unsigned i = 0; i < count; i++)
		if (infos[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE)
			sum += infos[i].usedGpuMemory;
	return sum;
}

static uint64_t by_gpu(nvmlDevice_t gpu)
{
	nvmlMemory_t memory;
	CHECK(nvml.memory(gpu, &memory) == NVML_SUCCESS);
	return memory.used;
}

static void at_most(uint64_t *most, uint64_t value)
{
	if (value > *most)
		*most = value;
}

int main(int count, char **arguments)
{
	CHECK(count == 4);
	void *library = dlopen(arguments[1], RTLD_NOW);
	CHECK(library);
	*(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
	*(void **)&nvml.by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
	*(void **)&nvml.processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
	const struct aliquot_limits *limits = map(arguments[2], sizeof(*limits));
	const struct aliquot_usage *usage = map(arguments[3], sizeof(*usage));
	nvmlDevice_t gpu;
	CHECK(nvml.init() == NVML_SUCCESS && nvml.by_index(0, &gpu) == NVML_SUCCESS);

	uint64_t looks = 0, ledger = 0, processes = 0, whole = 0, at_first = by_gpu(gpu);
	struct pollfd end = {.fd = STDIN_FILENO, .events = POLLIN};
	puts("watching");
	fflush(stdout);
	while (poll(&end, 1, 0) == 0) {
		for (int i = 0; i < 256; i++) /* the ledger is quicker to read than NVML */
			at_most(&ledger, (atomic_load(&usage->slices[0].word) & UNITS_MASK) * ALIQUOT_UNIT);
		at_most(&processes, by_process(gpu));
		at_most(&whole, by_gpu(gpu) - at_first);
		looks++;
	}
	printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", looks, ledger,
	       processes, whole, atomic_load(&limits->slices[0].limit_bytes));
	return 0;
}
