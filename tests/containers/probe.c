/* A program in a container: finds the driver and NVML in one way, and says in one line what it saw.
 *
 *   probe CUDA NVML [BYTES] [stay]
 *
 * CUDA and NVML are what dlopen is given; "-" leaves one out. BYTES are allocated. `stay`: until the
 * end of its input.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *open_library(const char *name)
{
	void *library = dlopen(name, RTLD_NOW);
	if (!library) {
		printf("error=%s\n", dlerror());
		exit(1);
	}
	return library;
}

static int call(void *library, const char *name, void *first, void *second)
{
	int (*function)(void *, void *) = (int (*)(void *, void *))dlsym(library, name);
	return function ? function(first, second) : -1;
}

static void see_cuda(void *library, size_t bytes)
{
	int init = call(library, "cuInit", NULL, NULL), count = 0;
	size_t total = 0, address = 0;
	void *context = NULL;
	printf("init=%d ", init);
	if (init)
		return;
	call(library, "cuDeviceGetCount", &count, NULL);
	call(library, "cuDeviceTotalMem_v2", &total, NULL);
	printf("gpus=%d memory=%zu ", count, total);
	if (bytes && !call(library, "cuDevicePrimaryCtxRetain", &context, NULL) &&
	    !call(library, "cuCtxSetCurrent", context, NULL))
		printf("alloc=%d ", call(library, "cuMemAlloc_v2", &address, (void *)bytes));
}

static void see_nvml(void *library)
{
	int init = call(library, "nvmlInit_v2", NULL, NULL);
	unsigned count = 0;
	void *device = NULL;
	unsigned long long memory[3] = {0};
	printf("nvml_init=%d ", init);
	if (init)
		return;
	call(library, "nvmlDeviceGetCount_v2", &count, NULL);
	call(library, "nvmlDeviceGetHandleByIndex_v2", NULL, &device);
	call(library, "nvmlDeviceGetMemoryInfo", device, memory);
	printf("nvml_gpus=%u nvml_memory=%llu ", count, memory[0]);
}

int main(int argc, char **argv)
{
	char rest[64];
	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "-"))
		see_cuda(open_library(argv[1]), argc > 3 ? strtoull(argv[3], NULL, 10) : 0);
	if (strcmp(argv[2], "-"))
		see_nvml(open_library(argv[2]));
	printf("pid=%d\n", (int)getpid());
	fflush(stdout);
	while (argc > 4 && read(0, rest, sizeof(rest)) > 0)
		;
	return 0;
}
