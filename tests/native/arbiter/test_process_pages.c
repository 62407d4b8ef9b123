/* The pages of processes as files: whoever walks the private directory opens their gates, they are mapped
 * again by number, and a page that a tenant truncates reads as zeroes in every thread. */
#include "private_directory.h"
#include "process_pages.h"

#include "../check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct private_directory private, records;
static char state_path[] = "/dev/shm/aliquot-test-XXXXXX";

static void close_gates(struct process_pages *pages)
{
	for (uint32_t i = 0; i < ALIQUOT_MAX_GPUS; i++) {
		pages->credit->slices[i].credit = 3;
		pages->credit->slices[i].pace = ALIQUOT_YIELD;
		pages->credit->slices[i].ring = 1;
	}
}

static bool is_open(const struct process_pages *pages)
{
	bool open = true;
	for (uint32_t i = 0; i < ALIQUOT_MAX_GPUS; i++) {
		const struct aliquot_credit_slice *slice = &pages->credit->slices[i];
		open &= slice->credit == ALIQUOT_OPEN && slice->pace == ALIQUOT_ALONE && !slice->ring;
	}
	return open;
}

static struct process_pages *make(int grant, uint32_t number, int *work)
{
	struct process_pages *pages = calloc(1, sizeof(*pages));
	struct process_page_fds fds;
	CHECK(process_pages_make(pages, grant, number, 2, &fds) == 0);
	CHECK(is_open(pages));
	CHECK(aliquot_credit_check(pages->credit, ALIQUOT_CREDIT_SIZE) == NULL);
	CHECK(aliquot_work_check(pages->work, 2, 2 * ALIQUOT_WORK_SIZE) == NULL);
	CHECK(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fds.credit, 0) == MAP_FAILED);
	close(fds.credit);
	if (work)
		*work = fds.work;
	else
		close(fds.work);
	return pages;
}

static void all_gates_are_opened_by_a_walk(int a, int b)
{
	struct process_pages *pages[] = {make(a, 1, NULL), make(a, 2, NULL), make(b, 1, NULL)};
	for (int i = 0; i < 3; i++)
		close_gates(pages[i]);
	CHECK(private_directory_open_gates(&private) == 3);
	for (int i = 0; i < 3; i++) {
		CHECK(is_open(pages[i]));
		process_pages_close(pages[i]);
		free(pages[i]);
	}
}

static bool is_two(uint32_t number, void *context)
{
	(void)context;
	return number == 2;
}

static void pages_are_mapped_again_by_number(int a)
{
	struct process_pages first, second;
	CHECK(process_pages_open(&first, a, 1, 2) == NULL);
	CHECK(process_pages_open(&second, a, 2, 2) == NULL);
	struct process_pages third;
	/* A work page that its process made shorter is filled up with zeroes: the process stays gated. */
	CHECK(process_pages_open(&third, a, 2, 3) == NULL);
	CHECK(third.work[1].magic == ALIQUOT_WORK_MAGIC && third.work[2].magic == 0);
	process_pages_close(&third);
	CHECK(strcmp(process_pages_open(&third, a, 9, 2), strerror(ENOENT)) == 0);
	close_gates(&first);
	close_gates(&second);
	process_pages_remove_others(a, is_two, NULL);
	CHECK(is_open(&first) && !is_open(&second));
	process_pages_close(&first);
	CHECK(process_pages_open(&first, a, 1, 2) != NULL);
	process_pages_remove(&second, a);
	CHECK(process_pages_open_gates_of(a) == 0);
}

static void *read_all(void *argument)
{
	struct process_pages *pages = argument;
	uint64_t sum = 0;
	for (uint32_t i = 0; i < 2; i++)
		sum += pages->work[i].magic + pages->work[i].launches;
	CHECK(sum == 0);
	return NULL;
}

/* The other thread blocks all signals but this one, as the credit thread does. */
static void a_truncated_page_reads_as_zeroes(int a)
{
	int work;
	struct process_pages *pages = make(a, 3, &work);
	CHECK(ftruncate(work, 0) == 0);
	pthread_t thread;
	sigset_t all, before;
	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	CHECK(pthread_create(&thread, NULL, read_all, pages) == 0);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_join(thread, NULL);
	CHECK(pages->work_mapping.truncated);
	CHECK(is_open(pages));
	close(work);
	process_pages_remove(pages, a);
	free(pages);
}

int main(void)
{
	struct failure failure;
	CHECK(mapping_catch_sigbus() == 0);
	CHECK(mkdtemp(state_path));
	CHECK(private_directory_open(&records, state_path, &failure));
	CHECK(private_directory_open_in_memory(&private, &records, state_path, &failure));
	CHECK(strcmp(private.path, records.path) == 0);
	int a = private_directory_open_grant(&private, "a");
	int b = private_directory_open_grant(&private, "b");
	CHECK(a >= 0 && b >= 0);
	all_gates_are_opened_by_a_walk(a, b);
	pages_are_mapped_again_by_number(a);
	a_truncated_page_reads_as_zeroes(a);
	close(a);
	close(b);
	private_directory_remove_grant(&private, "a");
	private_directory_close(&private);
	CHECK(access(private.path, F_OK) == 0);
	private_directory_remove_grant(&private, "b");
	private_directory_close(&private);
	CHECK(access(private.path, F_OK) != 0);
	CHECK(rmdir(state_path) == 0);
	return 0;
}
