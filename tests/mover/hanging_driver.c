/* The simulated driver, whose copies hang while the file that HANGS_WHILE names exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

int cuEventSynchronize(void *event)
{
	int (*next)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "cuEventSynchronize");
	while (!access(getenv("HANGS_WHILE"), F_OK))
		usleep(10000);
	return next(event);
}
