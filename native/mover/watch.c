#include "watch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

struct watched {
	atomic_bool works;
	atomic_uint steps;
	struct watched *next;
	/* For the main thread: at its last look, and how many looks ago that changed. */
	unsigned seen_steps, silent_looks;
};

static _Thread_local struct watched self;
static struct watched *threads;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct aliquot_arena *own;
static unsigned most_looks;

void watch_open(struct aliquot_arena *page, unsigned seconds)
{
	own = page;
	most_looks = seconds * 1000 / WATCH_LOOK_MS;
}

void watch_enter(void)
{
	pthread_mutex_lock(&lock);
	self.next = threads;
	threads = &self;
	pthread_mutex_unlock(&lock);
}

void watch_leave(void)
{
	pthread_mutex_lock(&lock);
	struct watched **link = &threads;
	while (*link != &self)
		link = &(*link)->next;
	*link = self.next;
	pthread_mutex_unlock(&lock);
}

void watch_work(void)
{
	watch_step();
	atomic_store(&self.works, true);
}

void watch_rest(void)
{
	atomic_store(&self.works, false);
}

/* It is a beat too: the main thread may be waiting for a lock of this one. */
void watch_step(void)
{
	atomic_fetch_add(&self.steps, 1);
	atomic_fetch_add(&own->beats, 1);
}

static bool hangs(struct watched *thread)
{
	unsigned steps = atomic_load(&thread->steps);
	bool silent = atomic_load(&thread->works) && steps == thread->seen_steps;
	thread->silent_looks = silent ? thread->silent_looks + 1 : 0;
	thread->seen_steps = steps;
	return thread->silent_looks > most_looks;
}

void watch_look(void)
{
	bool hung = false;
	pthread_mutex_lock(&lock);
	for (struct watched *thread = threads; thread; thread = thread->next)
		hung |= hangs(thread);
	pthread_mutex_unlock(&lock);
	atomic_fetch_add(&own->beats, 1);
	if (!hung)
		return;
	fprintf(stderr, "aliquot-mover: a thread has done nothing for %u s\n",
	        most_looks * WATCH_LOOK_MS / 1000);
	_exit(ALIQUOT_MOVER_HUNG);
}
