/* dlopen and dlmopen, if the stand-in is preloaded: every name of a driver's library means ours.
 *
 * A preloaded library is found by its SONAME only, but programs also open libcuda.so, or the
 * driver's file by its path. The code in redirect_entry.S calls redirect_path and jumps to the C
 * library's function, so that the caller stays the same: the search uses its RUNPATH and its
 * namespace. */
#define _GNU_SOURCE
#include "glibc_floor.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void *redirect_next_dlopen, *redirect_next_dlmopen;
const char *redirect_path(const char *path);

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

const char *redirect_path(const char *path)
{
	const char *ours = "";
	find_ourselves();
	if (path && is_named(path, "libcuda.so"))
		ours = our_cuda;
	else if (path && is_named(path, "libnvidia-ml.so"))
		ours = our_nvml;
	return ours[0] && access(ours, R_OK) == 0 ? ours : path;
}
