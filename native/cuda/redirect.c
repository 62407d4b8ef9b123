/* dlopen and dlmopen, if the stand-in is preloaded: every name of a driver's library means ours.
 * NVIDIA's OpenCL is not found at all: it has a driver of its own, past every limit.
 *
 * A preloaded library is found by its SONAME only, but programs also open libcuda.so, or the
 * driver's file by its path. The code in redirect_entry.S calls redirect_path and jumps to the C
 * library's function, so that the caller stays the same: the search uses its RUNPATH and its
 * namespace. */
#define _GNU_SOURCE
#include "forward.h"
#include "glibc_floor.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void *redirect_next_dlopen, *redirect_next_dlmopen;
const char *redirect_path(const char *path);

/* A path that only root could make. */
#define NOWHERE FORWARD_DRIVER "/none/libnvidia-opencl.so.1"

static char our_cuda[PATH_MAX], our_nvml[PATH_MAX + 32];

static bool is_named(const char *path, const char *library)
{
	const char *slash = strrchr(path, '/');
	return strncmp(slash ? slash + 1 : path, library, strlen(library)) == 0;
}

/* Runs once when we are loaded, while there is one thread; or earlier, if somebody calls dlopen. */
__attribute__((constructor)) static void find_ourselves(void)
{
	Dl_info info;
	if (redirect_next_dlopen)
		return;
	redirect_next_dlmopen = dlsym(RTLD_NEXT, "dlmopen");
	redirect_next_dlopen = dlsym(RTLD_NEXT, "dlopen");
	if (!dladdr((void *)&redirect_path, &info) || !strchr(info.dli_fname, '/'))
		return;
	snprintf(our_cuda, sizeof(our_cuda), "%s", info.dli_fname);
	snprintf(our_nvml, sizeof(our_nvml), "%.*s/libnvidia-ml.so.1",
	         (int)(strrchr(our_cuda, '/') - our_cuda), our_cuda);
}

static const char *hide_opencl(void)
{
	static _Atomic bool has_said;
	if (!atomic_exchange(&has_said, true))
		forward_say("a slice has no OpenCL, which no limit would hold: use CUDA");
	return NOWHERE;
}

const char *redirect_path(const char *path)
{
	find_ourselves();
	if (!path)
		return path;
	if (is_named(path, "libnvidia-opencl.so"))
		return hide_opencl();
	/* We are loaded: the linker knows us by this path, whether or not the file is still there. */
	if (our_cuda[0] && is_named(path, "libcuda.so"))
		return our_cuda;
	if (is_named(path, "libnvidia-ml.so") && access(our_nvml, R_OK) == 0)
		return our_nvml;
	return path;
}
