/* A program that loads the driver as its arguments say, one step after another:
 *
 *     open|deep|global|noload|new:NAME   dlopen with these flags, or dlmopen into a new namespace
 *     main                               the handle of the program itself
 *     close                              dlclose the handle
 *     take                               take memory through the handle: at most 4 GiB
 *     take-by-address                    the same, with functions that cuGetProcAddress finds
 *     take-by-version                    the same, with functions that dlvsym finds
 *     memory                             NVML's memory of the first GPU, through the handle
 *     wait                               until stdin ends
 *     again                              fork, and exec this program with the steps that follow
 *
 * Each step but `close` prints a line: the handle's file, or MiB; or why it failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE ((size_t)64 << 20)
#define PIECES 64

static void *handle;
static const char *found_by;

static void *find(const char *name)
{
	int (*address)(const char *, void **, int, unsigned long, int *);
	void *found = NULL;
	int status;
	if (found_by[4] == 0)
		return dlsym(handle, name);
	if (strcmp(found_by, "take-by-version") == 0)
		return dlvsym(handle, name, "libcuda.so.1");
	address = dlsym(handle, "cuGetProcAddress_v2");
	address(name, &found, 13000, 0, &status);
	return found;
}

static void *function(const char *plain, const char *versioned)
{
	void *found = find(strcmp(found_by, "take-by-address") == 0 ? plain : versioned);
	if (!found)
		printf("no %s\n", versioned);
	return found;
}

static void take(void)
{
	int (*init)(unsigned) = function("cuInit", "cuInit");
	int (*retain)(void **, int) = function("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain");
	int (*set)(void *) = function("cuCtxSetCurrent", "cuCtxSetCurrent");
	int (*alloc)(unsigned long long *, size_t) = function("cuMemAlloc", "cuMemAlloc_v2");
	int (*release)(unsigned long long) = function("cuMemFree", "cuMemFree_v2");
	unsigned long long pieces[PIECES];
	unsigned count = 0;
	void *context;
	if (!init || !retain || !set || !alloc || !release)
		return;
	int result = init(0);
	if (result == 0)
		result = retain(&context, 0);
	if (result == 0)
		result = set(context);
	if (result != 0) {
		printf("error %d\n", result);
		return;
	}
	while (count < PIECES && alloc(&pieces[count], PIECE) == 0)
		count++;
	printf("%zu\n", count * PIECE >> 20);
	while (count > 0)
		release(pieces[--count]);
}

static void memory(void)
{
	int (*init)(void) = dlsym(handle, "nvmlInit_v2");
	int (*get)(unsigned, void **) = dlsym(handle, "nvmlDeviceGetHandleByIndex_v2");
	int (*info)(void *, unsigned long long *) = dlsym(handle, "nvmlDeviceGetMemoryInfo");
	unsigned long long figures[3];
	void *device;
	if (init() == 0 && get(0, &device) == 0 && info(device, figures) == 0)
		printf("%llu\n", figures[0] >> 20);
	else
		puts("error");
}

static void keep(void *opened)
{
	struct link_map *map;
	handle = opened;
	if (!handle)
		puts("not found");
	else
		puts(dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "?");
}

static int again(char **arguments)
{
	int status;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		execv("/proc/self/exe", arguments);
		_exit(127);
	}
	return waitpid(child, &status, 0) == child ? status : 1;
}

int main(int count, char **arguments)
{
	for (int i = 1; i < count; i++) {
		char *step = arguments[i], *name = strchr(step, ':');
		if (name)
			*name++ = 0;
		if (strcmp(step, "open") == 0)
			keep(dlopen(name, RTLD_NOW | RTLD_LOCAL));
		else if (strcmp(step, "deep") == 0)
			keep(dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND));
		else if (strcmp(step, "global") == 0)
			keep(dlopen(name, RTLD_NOW | RTLD_GLOBAL));
		else if (strcmp(step, "noload") == 0)
			keep(dlopen(name, RTLD_NOW | RTLD_NOLOAD));
		else if (strcmp(step, "new") == 0)
			keep(dlmopen(LM_ID_NEWLM, name, RTLD_NOW | RTLD_LOCAL));
		else if (strcmp(step, "main") == 0)
			keep(dlopen(NULL, RTLD_NOW));
		else if (strcmp(step, "close") == 0)
			dlclose(handle);
		else if (strncmp(step, "take", 4) == 0)
			found_by = step, take();
		else if (strcmp(step, "memory") == 0)
			memory();
		else if (strcmp(step, "wait") == 0)
			getchar();
		else if (strcmp(step, "again") == 0)
			return again(arguments + i);
		fflush(stdout);
	}
	return 0;
}
