/* The page store of a parent and its children, each a process as in the arbiter: pages that a child
 * stores outlive it, get open gates, and are adopted by the next child. */
#include "page_store.h"

#include "../check.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct page_store store;

static struct page_owner owner_of(uint32_t slot)
{
	return (struct page_owner){.grant = "a", .slot = slot, .pid = 100, .start_time = 7};
}

static struct stored_pages *add_pages(uint32_t slot)
{
	struct page_owner owner = owner_of(slot);
	struct stored_pages *stored;
	struct process_page_fds fds;
	CHECK(page_store_add(&store, &owner, 2, &stored, &fds) == 0);
	CHECK(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fds.credit, 0) == MAP_FAILED);
	process_pages_close(&fds);
	return stored;
}

static void close_gates(const struct stored_pages *stored)
{
	for (uint32_t i = 0; i < stored->pages.slices; i++) {
		stored->pages.credit->slices[i].credit = 3;
		stored->pages.credit->slices[i].pace = ALIQUOT_YIELD;
		stored->pages.credit->slices[i].ring = 1;
	}
}

static bool is_open(const struct stored_pages *stored)
{
	bool open = true;
	for (uint32_t i = 0; i < stored->pages.slices; i++) {
		const struct aliquot_credit_slice *slice = &stored->pages.credit->slices[i];
		open &= slice->credit == ALIQUOT_OPEN && slice->pace == ALIQUOT_ALONE && !slice->ring;
	}
	return open;
}

static unsigned count_stored(void)
{
	unsigned count = 0;
	for (const struct stored_pages *stored = store.all; stored; stored = stored->next)
		count++;
	return count;
}

/* Serves a child until it ends; returns how many pages are stored then. */
static unsigned run_child(void (*live)(void))
{
	CHECK(page_store_prepare(&store) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		page_store_be_child(&store);
		live();
		_exit(0);
	}
	page_store_be_parent(&store);
	while (store.parent_end >= 0) {
		struct pollfd poller = {.fd = store.parent_end, .events = POLLIN};
		poll(&poller, 1, -1);
		page_store_serve(&store);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return count_stored();
}

static void add_three_and_drop_one(void)
{
	close_gates(add_pages(0));
	close_gates(add_pages(1));
	struct stored_pages *third = add_pages(2);
	close_gates(third);
	page_store_drop(&store, third);
}

static void adopt_by_identity(void)
{
	struct page_owner first = owner_of(0), second = owner_of(1), other = owner_of(1),
					  later = owner_of(1), other_grant = owner_of(1);
	other.slot = 5;
	later.start_time++;
	strcpy(other_grant.grant, "b");
	CHECK(!page_store_adopt(&store, &other, 2));
	CHECK(!page_store_adopt(&store, &later, 2));
	CHECK(!page_store_adopt(&store, &other_grant, 2));
	CHECK(!page_store_adopt(&store, &second, 3));
	CHECK(page_store_adopt(&store, &first, 2));
	struct stored_pages *stored = page_store_adopt(&store, &second, 2);
	CHECK(stored && is_open(stored));
	close_gates(stored);
	close_gates(add_pages(1)); /* an exec, and death before the old pages are dropped */
}

static void adopt_the_newest_and_drop_the_rest(void)
{
	struct page_owner second = owner_of(1);
	struct stored_pages *newest = page_store_adopt(&store, &second, 2);
	CHECK(newest && newest->number == 4);
	page_store_drop_unadopted(&store);
	CHECK(count_stored() == 1);
}

/* This process is the parent too, and does not serve meanwhile. */
static void a_parent_that_does_not_answer_times_out(void)
{
	struct page_owner owner = owner_of(9);
	struct stored_pages *stored;
	struct process_page_fds fds;
	unsigned before = count_stored();
	CHECK(page_store_prepare(&store) == 0);
	CHECK(page_store_add(&store, &owner, 1, &stored, &fds) == -ETIMEDOUT);
	CHECK(count_stored() == before);
	CHECK(!store.dropped); /* reported, after the message that was never answered */
}

/* More than the socket can hold: reports that could not be sent are sent later. */
static void drop_many(void)
{
	enum { MANY = 600 };
	static struct stored_pages *all[MANY];
	for (unsigned i = 0; i < MANY; i++)
		all[i] = add_pages(i);
	for (unsigned i = 0; i < MANY; i++)
		page_store_drop(&store, all[i]);
	while (store.dropped)
		page_store_drop(&store, add_pages(0));
}

int main(void)
{
	page_store_init(&store);
	CHECK(run_child(add_three_and_drop_one) == 2);
	for (const struct stored_pages *stored = store.all; stored; stored = stored->next)
		CHECK(!is_open(stored));
	CHECK(page_store_open_gates(&store) == 2);
	for (const struct stored_pages *stored = store.all; stored; stored = stored->next)
		CHECK(is_open(stored));
	CHECK(run_child(adopt_by_identity) == 3);
	CHECK(page_store_open_gates(&store) == 3);
	CHECK(run_child(adopt_the_newest_and_drop_the_rest) == 1);
	CHECK(run_child(drop_many) == 1);
	a_parent_that_does_not_answer_times_out();
	page_store_close(&store);
	return 0;
}
