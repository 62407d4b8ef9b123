#define _GNU_SOURCE
#include "thread.h"

#include "glibc_floor.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

/* The driver needs threads, so their functions are there; before glibc 2.34 in a library of their own. */
static void *thread_function(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);
	__typeof__(&dlopen) open = (__typeof__(&dlopen))dlsym(RTLD_DEFAULT, "dlopen");
	void *library = !found && open ? open("libpthread.so.0", RTLD_LAZY) : NULL;
	return library ? dlsym(library, name) : found;
}

bool thread_start(void *(*run)(void *), void *argument)
{
	__typeof__(&pthread_create) create = (__typeof__(&pthread_create))thread_function(
		"pthread_create");
	__typeof__(&pthread_detach) detach = (__typeof__(&pthread_detach))thread_function(
		"pthread_detach");
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	bool started = create && create(&thread, NULL, run, argument) == 0;
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (started && detach)
		detach(thread);
	return started;
}
