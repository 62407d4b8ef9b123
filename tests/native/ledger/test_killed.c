/* A process killed between any two steps of the ledger leaves nothing that belongs to nobody.
 *
 * Every pair of (operation, step) is tried: a child does the operation and is killed at that step,
 * with another slot holding memory; then a survivor goes on working, and at the end the dead slot is
 * forgotten. At each point the total is the sum of what the slots hold, and at the end it is zero. */
#define _GNU_SOURCE
#include "aliquot/ledger.h"

#include "../check.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEAD = 5, SURVIVOR = 9, STEPS = 64 };

struct shared {
	struct aliquot_slice_limits limits;
	struct aliquot_usage_slice usage;
};

static int die_at = -1, lower_at = -1;
static struct aliquot_usage_slice *stirred;
static struct aliquot_slice_limits *lowered;

void ledger_test_point(void);
void ledger_test_point(void)
{
	if (stirred)
		atomic_fetch_add(&stirred->word, 1);
	if (lower_at >= 0 && lower_at-- == 0)
		lowered->limit_bytes = 35 * ALIQUOT_UNIT;
	if (die_at >= 0 && die_at-- == 0)
		raise(SIGKILL);
}

static void reserve(struct shared *s)
{
	ledger_reserve(&s->usage, &s->limits, DEAD, 30 * ALIQUOT_UNIT);
}

static void release(struct shared *s)
{
	ledger_release(&s->usage, DEAD, 4 * ALIQUOT_UNIT);
}

static void reserve_and_release(struct shared *s)
{
	reserve(s);
	release(s);
}

/* At each step in turn the limit falls below what it would reserve. */
static int lower_step;

static void reserve_under_a_falling_limit(struct shared *s)
{
	lowered = &s->limits;
	lower_at = lower_step;
	bool stands = ledger_reserve(&s->usage, &s->limits, DEAD, 30 * ALIQUOT_UNIT);
	if (stands || ledger_total(&s->usage) != 30 * ALIQUOT_UNIT)
		_exit(1);
}

static void forget_another(struct shared *s)
{
	ledger_forget(&s->usage, SURVIVOR);
}

static void check_sum(const struct shared *s)
{
	CHECK(ledger_held(&s->usage, DEAD) + ledger_held(&s->usage, SURVIVOR) ==
	      ledger_total(&s->usage));
	CHECK(ledger_total(&s->usage) <= s->limits.limit_bytes);
}

/* False: the operation ended before that step. */
static bool killed_at(void (*operation)(struct shared *), int step)
{
	struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
	                        -1, 0);
	CHECK(s != MAP_FAILED);
	s->limits.gpu_bytes = s->limits.limit_bytes = 100 * ALIQUOT_UNIT;
	CHECK(ledger_reserve(&s->usage, &s->limits, DEAD, 10 * ALIQUOT_UNIT));
	CHECK(ledger_reserve(&s->usage, &s->limits, SURVIVOR, 20 * ALIQUOT_UNIT));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		die_at = step;
		operation(s);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
	s->limits.limit_bytes = 100 * ALIQUOT_UNIT;
	check_sum(s);
	CHECK(ledger_reserve(&s->usage, &s->limits, SURVIVOR, 3 * ALIQUOT_UNIT));
	check_sum(s);
	ledger_release(&s->usage, SURVIVOR, ALIQUOT_UNIT);
	check_sum(s);
	ledger_forget(&s->usage, DEAD);
	CHECK(ledger_held(&s->usage, DEAD) == 0);
	check_sum(s);
	ledger_forget(&s->usage, SURVIVOR);
	CHECK(ledger_total(&s->usage) == 0);
	munmap(s, sizeof(*s));
	return WIFSIGNALED(status);
}

/* How many steps it has. */
static int try_all(void (*operation)(struct shared *))
{
	int step = 0;
	while (killed_at(operation, step))
		CHECK(++step < STEPS);
	return step;
}

/* The arbiter gives up on a word that changes between any two steps; before and after, nothing hangs. */
static void forget_while_the_word_changes(void)
{
	static struct aliquot_usage_slice usage;
	stirred = &usage;
	CHECK(!ledger_forget(&usage, DEAD));
	stirred = NULL;
	CHECK(ledger_forget(&usage, DEAD));
}

int main(void)
{
	forget_while_the_word_changes();
	int steps = try_all(reserve);
	CHECK(steps > 2);
	CHECK(try_all(release) > 2);
	CHECK(try_all(reserve_and_release) > steps);
	CHECK(try_all(forget_another) > 2);
	for (lower_step = 0; lower_step < steps; lower_step++)
		CHECK(try_all(reserve_under_a_falling_limit) > 0);
	return 0;
}
