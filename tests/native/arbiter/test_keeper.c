/* The keeper between a parent and its children, each a process as in the arbiter: what a child hands
 * over is there when it is dead, open, and found by the next one. */
#include "keeper.h"

#include "../check.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct keeper keeper;

static struct keeping of(uint32_t slot)
{
	return (struct keeping){.grant = "a", .slot = slot, .pid = 100, .start_time = 7};
}

static struct kept *make(uint32_t slot)
{
	struct keeping whose = of(slot);
	struct kept *kept;
	struct pair_fds fds;
	CHECK(keeper_make(&keeper, &whose, 2, &kept, &fds) == 0);
	CHECK(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fds.credit, 0) == MAP_FAILED);
	pair_close(&fds);
	return kept;
}

static void shut(const struct kept *kept)
{
	for (uint32_t i = 0; i < kept->pair.slices; i++) {
		kept->pair.credit->slices[i].credit = 3;
		kept->pair.credit->slices[i].pace = ALIQUOT_YIELD;
		kept->pair.credit->slices[i].ring = 1;
	}
}

static bool is_open(const struct kept *kept)
{
	bool open = true;
	for (uint32_t i = 0; i < kept->pair.slices; i++) {
		const struct aliquot_credit_slice *slice = &kept->pair.credit->slices[i];
		open &= slice->credit == ALIQUOT_OPEN && slice->pace == ALIQUOT_ALONE && !slice->ring;
	}
	return open;
}

static unsigned count(void)
{
	unsigned count = 0;
	for (const struct kept *kept = keeper.all; kept; kept = kept->next)
		count++;
	return count;
}

/* Serves a child to its end; how many pairs are kept after it. */
static unsigned raise_child(void (*live)(void))
{
	CHECK(keeper_prepare(&keeper) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		keeper_be_child(&keeper);
		live();
		_exit(0);
	}
	keeper_be_parent(&keeper);
	while (keeper.parent_end >= 0) {
		struct pollfd poller = {.fd = keeper.parent_end, .events = POLLIN};
		poll(&poller, 1, -1);
		keeper_serve(&keeper);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return count();
}

static void hand_over_three_and_drop_one(void)
{
	shut(make(0));
	shut(make(1));
	struct kept *third = make(2);
	shut(third);
	keeper_drop(&keeper, third);
}

static void claim_by_identity(void)
{
	struct keeping first = of(0), second = of(1), other = of(1), later = of(1), stranger = of(1);
	other.slot = 5;
	later.start_time++;
	strcpy(stranger.grant, "b");
	CHECK(!keeper_claim(&keeper, &other, 2));
	CHECK(!keeper_claim(&keeper, &later, 2));
	CHECK(!keeper_claim(&keeper, &stranger, 2));
	CHECK(!keeper_claim(&keeper, &second, 3));
	CHECK(keeper_claim(&keeper, &first, 2));
	struct kept *kept = keeper_claim(&keeper, &second, 2);
	CHECK(kept && is_open(kept));
	shut(kept);
	shut(make(1)); /* an exec, and death before the old ones are dropped */
}

static void claim_the_newest_and_drop_the_rest(void)
{
	struct keeping second = of(1);
	struct kept *newest = keeper_claim(&keeper, &second, 2);
	CHECK(newest && newest->number == 4);
	keeper_drop_unclaimed(&keeper);
	CHECK(count() == 1);
}

/* The parent serves nobody meanwhile: it is this very process. */
static void a_parent_that_does_not_answer(void)
{
	struct keeping whose = of(9);
	struct kept *kept;
	struct pair_fds fds;
	unsigned before = count();
	CHECK(keeper_prepare(&keeper) == 0);
	CHECK(keeper_make(&keeper, &whose, 1, &kept, &fds) == -ETIMEDOUT);
	CHECK(count() == before);
	CHECK(!keeper.dropped); /* told, behind what it never answered */
}

/* As many at once as no socket holds: what could not be told is told later. */
static void drop_many(void)
{
	enum { MANY = 600 };
	static struct kept *all[MANY];
	for (unsigned i = 0; i < MANY; i++)
		all[i] = make(i);
	for (unsigned i = 0; i < MANY; i++)
		keeper_drop(&keeper, all[i]);
	while (keeper.dropped)
		keeper_drop(&keeper, make(0));
}

int main(void)
{
	keeper_init(&keeper);
	CHECK(raise_child(hand_over_three_and_drop_one) == 2);
	for (const struct kept *kept = keeper.all; kept; kept = kept->next)
		CHECK(!is_open(kept));
	CHECK(keeper_open_gates(&keeper) == 2);
	for (const struct kept *kept = keeper.all; kept; kept = kept->next)
		CHECK(is_open(kept));
	CHECK(raise_child(claim_by_identity) == 3);
	CHECK(keeper_open_gates(&keeper) == 3);
	CHECK(raise_child(claim_the_newest_and_drop_the_rest) == 1);
	CHECK(raise_child(drop_many) == 1);
	a_parent_that_does_not_answer();
	keeper_close(&keeper);
	return 0;
}
