/* The lock between the processes of a simulated machine: one at a time, whoever is killed when, and
 * nobody is kept waiting by one who always comes back for it. */
#include "lock.h"

#include "../check.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES 4u
#define KILLS 200u
#define PROGRESS 20000u
#define WAITS 5u

static struct {
	struct sim_lock lock;
	uint64_t first, second; /* guarded by it: equal whenever nobody is in between */
	atomic_uint inside;
	atomic_uint wrong;
	atomic_uint mended;
	atomic_bool over;
	atomic_bool dead[PROCESSES + KILLS + 2]; /* by ticket */
} *shared;

static bool lives(void *context, uint32_t ticket)
{
	(void)context;
	return !shared->dead[ticket];
}

static void mend(void)
{
	shared->second = shared->first;
	shared->inside = 0;
	shared->mended++;
}

static void change(void)
{
	if (shared->first != shared->second || atomic_fetch_add(&shared->inside, 1))
		shared->wrong++;
	shared->first++;
	for (volatile int pause = 0; pause < 50; pause++)
		;
	shared->second++;
	atomic_fetch_sub(&shared->inside, 1);
}

static pid_t start(uint32_t ticket)
{
	pid_t child = fork();
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!shared->over) {
		if (lock_take(&shared->lock, ticket, lives, NULL))
			mend();
		change();
		lock_give(&shared->lock);
	}
	_exit(0);
}

static void pause_for(long ns)
{
	nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void share(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
}

static void killed_at_any_instruction(void)
{
	pid_t children[PROCESSES];
	uint32_t tickets[PROCESSES], next = 1;
	share();
	for (unsigned i = 0; i < PROCESSES; i++)
		children[i] = start(tickets[i] = next++);
	for (unsigned kill_number = 0; kill_number < KILLS; kill_number++) {
		unsigned which = (unsigned)rand() % PROCESSES;
		pause_for(rand() % 2000000);
		kill(children[which], SIGKILL);
		waitpid(children[which], NULL, 0);
		shared->dead[tickets[which]] = true;
		children[which] = start(tickets[which] = next++);
	}
	uint64_t before = __atomic_load_n(&shared->first, __ATOMIC_RELAXED);
	while (__atomic_load_n(&shared->first, __ATOMIC_RELAXED) < before + PROGRESS)
		pause_for(1000000);
	shared->over = true;
	for (unsigned i = 0; i < PROCESSES; i++)
		waitpid(children[i], NULL, 0);
	CHECK(!shared->wrong);
	CHECK(shared->first == shared->second);
	CHECK(shared->mended); /* else nobody was killed where it matters */
	munmap(shared, sizeof(*shared));
}

/* It has the lock for nearly all of the time. */
static pid_t start_hog(uint32_t ticket)
{
	pid_t child = fork();
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!shared->over) {
		lock_take(&shared->lock, ticket, lives, NULL);
		for (volatile int pause = 0; pause < 1000000; pause++)
			;
		lock_give(&shared->lock);
	}
	_exit(0);
}

static void who_waits_has_it_next(void)
{
	struct timespec before, after;
	share();
	pid_t hog = start_hog(1);
	while (!__atomic_load_n(&shared->lock.holder, __ATOMIC_RELAXED))
		pause_for(100000);
	clock_gettime(CLOCK_MONOTONIC, &before);
	for (unsigned i = 0; i < WAITS; i++) {
		CHECK(!lock_take(&shared->lock, 2, lives, NULL));
		lock_give(&shared->lock);
	}
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK(after.tv_sec - before.tv_sec < 10);
	shared->over = true;
	waitpid(hog, NULL, 0);
	CHECK(!shared->lock.heir && !shared->lock.holder);
	munmap(shared, sizeof(*shared));
}

int main(void)
{
	killed_at_any_instruction();
	who_waits_has_it_next();
	return 0;
}
