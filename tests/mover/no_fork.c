/* No process can be started while the file that NO_FORK_WHILE names exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

pid_t fork(void)
{
	pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
	if (access(getenv("NO_FORK_WHILE"), F_OK))
		return next();
	errno = EAGAIN;
	return -1;
}
