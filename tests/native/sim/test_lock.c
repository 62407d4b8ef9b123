/* The lock of the machine's file: one holder at a time, even if holders are killed at any instruction,
 * and no process starves while another takes the lock again and again. */
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
	uint64_t first, second; /* guarded by the lock: equal unless a holder is changing them */
	atomic_uint inside;
	atomic_uint wrong;
	atomic_uint repaired;
	atomic_bool over;
	atomic_bool dead[PROCESSES + KILLS + 2]; /* by ticket */
} *shared;

static bool lives(void *context, uint32_t ticket)
{
	(void)context;
	return !shared->dead[ticket];
}

static void repair(void)
{
	shared->second = shared->first;
	shared->inside = 0;
	shared->repaired++;
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
		if (lock_acquire(&shared->lock, ticket, lives, NULL))
			repair();
		change();
		lock_release(&shared->lock);
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
	CHECK(shared->repaired); /* else no process was killed while it held the lock */
	munmap(shared, sizeof(*shared));
}

/* Holds the lock nearly all of the time. */
static pid_t start_hog(uint32_t ticket)
{
	pid_t child = fork();
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!shared->over) {
		lock_acquire(&shared->lock, ticket, lives, NULL);
		for (volatile int pause = 0; pause < 1000000; pause++)
			;
		lock_release(&shared->lock);
	}
	_exit(0);
}

static void a_waiter_does_not_starve(void)
{
	struct timespec before, after;
	share();
	pid_t hog = start_hog(1);
	while (!__atomic_load_n(&shared->lock.holder, __ATOMIC_RELAXED))
		pause_for(100000);
	clock_gettime(CLOCK_MONOTONIC, &before);
	for (unsigned i = 0; i < WAITS; i++) {
		CHECK(!lock_acquire(&shared->lock, 2, lives, NULL));
		lock_release(&shared->lock);
	}
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK(after.tv_sec - before.tv_sec < 10);
	shared->over = true;
	waitpid(hog, NULL, 0);
	CHECK(!shared->lock.next && !shared->lock.holder);
	munmap(shared, sizeof(*shared));
}

int main(void)
{
	killed_at_any_instruction();
	a_waiter_does_not_starve();
	return 0;
}
