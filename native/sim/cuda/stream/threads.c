/* The driver's own threads, and their condition variables. See threads.h. */
#include "cuda/stream/threads.h"

#include "cuda/core/sim.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

static pthread_cond_t work; /* for the worker */
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static bool has_worker;

void threads_start(void *(*body)(void *))
{
	pthread_t thread;
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, body, NULL))
		abort();
	pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void progress_announce(void)
{
	pthread_cond_broadcast(&progress);
}

void progress_wait(void)
{
	pthread_cond_wait(&progress, &sim.lock);
}

bool worker_started(void)
{
	return has_worker;
}

void worker_start(void *(*body)(void *))
{
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&work, &attributes);
	pthread_condattr_destroy(&attributes);
	has_worker = true;
	threads_start(body);
}

void worker_wake(void)
{
	if (has_worker)
		pthread_cond_signal(&work);
}

void worker_sleep(uint64_t wake_ns)
{
	if (wake_ns == SIM_NEVER) {
		pthread_cond_wait(&work, &sim.lock);
		return;
	}
	struct timespec t = {(time_t)(wake_ns / 1000000000u), (long)(wake_ns % 1000000000u)};
	pthread_cond_timedwait(&work, &sim.lock, &t);
}
