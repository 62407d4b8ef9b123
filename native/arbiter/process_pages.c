#include "process_pages.h"

#include "directory.h"
#include "page_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CREDIT "credit"
#define WORK "work"
#define NAME_SIZE 24

static size_t work_size(uint32_t slices)
{
	return (size_t)slices * ALIQUOT_WORK_SIZE;
}

static void fill_credit(struct aliquot_credit *credit)
{
	credit->version = ALIQUOT_VERSION;
	credit->size = ALIQUOT_CREDIT_SIZE;
	for (uint32_t i = 0; i < ALIQUOT_MAX_GPUS; i++) {
		atomic_store(&credit->slices[i].credit, ALIQUOT_OPEN);
		atomic_store(&credit->slices[i].quantum_ns, ALIQUOT_QUANTUM_NS);
	}
	credit->magic = ALIQUOT_CREDIT_MAGIC;
}

static void fill_work(struct aliquot_work_slice *work, uint32_t slices)
{
	for (uint32_t i = 0; i < slices; i++) {
		work[i].magic = ALIQUOT_WORK_MAGIC;
		work[i].version = ALIQUOT_VERSION;
		work[i].size = ALIQUOT_WORK_SIZE;
	}
}

static void open_gates(struct aliquot_credit *credit)
{
	for (uint32_t i = 0; i < ALIQUOT_MAX_GPUS; i++) {
		struct aliquot_credit_slice *slice = &credit->slices[i];
		atomic_store(&slice->credit, ALIQUOT_OPEN);
		atomic_store(&slice->pace, ALIQUOT_ALONE);
		atomic_store(&slice->ring, 0);
	}
}

static void file_name(char name[NAME_SIZE], const char *kind, uint32_t number)
{
	snprintf(name, NAME_SIZE, "%s.%u", kind, number);
}

/* Makes one file and maps it. The descriptor, or -errno. */
static int make_page(struct mapping *mapping, int directory, const char *kind, uint32_t number,
                     size_t size)
{
	char name[NAME_SIZE];
	file_name(name, kind, number);
	unlinkat(directory, name, 0); /* of an arbiter that was killed before it used the number */
	int fd = page_file_make(directory, name, size, 0600);
	int error = fd < 0 ? fd : mapping_open(mapping, fd, size);
	if (error && fd >= 0)
		close(fd);
	return error ? error : fd;
}

int process_pages_make(struct process_pages *pages, int directory, uint32_t number, uint32_t slices,
                       struct process_page_fds *fds)
{
	char name[NAME_SIZE];
	*pages = (struct process_pages){.slices = slices, .number = number};
	*fds = (struct process_page_fds){-1, -1};
	int credit = make_page(&pages->credit_mapping, directory, CREDIT, number, ALIQUOT_CREDIT_SIZE);
	int error = credit < 0 ? credit : 0;
	if (!error) {
		close(credit);
		fds->work = make_page(&pages->work_mapping, directory, WORK, number, work_size(slices));
		error = fds->work < 0 ? fds->work : 0;
	}
	if (!error) {
		fill_credit(pages->credit_mapping.at);
		fill_work(pages->work_mapping.at, slices);
		pages->credit = pages->credit_mapping.at;
		pages->work = pages->work_mapping.at;
		file_name(name, CREDIT, number);
		fds->credit = page_file_open_for_readers(directory, name);
		error = fds->credit < 0 ? fds->credit : 0;
	}
	if (error) {
		process_pages_close_fds(fds);
		process_pages_remove(pages, directory);
	}
	return error;
}

void process_pages_close_fds(const struct process_page_fds *fds)
{
	if (fds->credit >= 0)
		close(fds->credit);
	if (fds->work >= 0)
		close(fds->work);
}

static const char *map_page(struct mapping *mapping, int directory, const char *kind,
                            uint32_t number, size_t size)
{
	char name[NAME_SIZE];
	file_name(name, kind, number);
	int fd = openat(directory, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return strerror(errno);
	/* A process that truncated its page is held by zeroes: it is not let go. */
	int error = strcmp(kind, WORK) ? 0 : -posix_fallocate(fd, 0, (off_t)size);
	if (!error)
		error = mapping_open(mapping, fd, size);
	close(fd);
	return error == -EFBIG ? "truncated" : error ? strerror(-error) : NULL;
}

const char *process_pages_open(struct process_pages *pages, int directory, uint32_t number,
                               uint32_t slices)
{
	*pages = (struct process_pages){.slices = slices, .number = number};
	const char *why = map_page(&pages->credit_mapping, directory, CREDIT, number,
	                           ALIQUOT_CREDIT_SIZE);
	if (!why)
		why = aliquot_credit_check(pages->credit_mapping.at, ALIQUOT_CREDIT_SIZE);
	if (!why)
		why = map_page(&pages->work_mapping, directory, WORK, number, work_size(slices));
	if (why) {
		process_pages_close(pages);
		return why;
	}
	pages->credit = pages->credit_mapping.at;
	pages->work = pages->work_mapping.at;
	return NULL;
}

bool process_pages_trim(const struct process_pages *pages, int directory)
{
	char name[NAME_SIZE];
	file_name(name, WORK, pages->number);
	int fd = openat(directory, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool was_longer = page_file_trim(fd, work_size(pages->slices));
	close(fd);
	return was_longer;
}

void process_pages_close(struct process_pages *pages)
{
	pages->credit = NULL;
	pages->work = NULL;
	mapping_close(&pages->credit_mapping);
	mapping_close(&pages->work_mapping);
}

static void remove_files(int directory, uint32_t number)
{
	char name[NAME_SIZE];
	file_name(name, WORK, number);
	unlinkat(directory, name, 0);
	file_name(name, CREDIT, number);
	unlinkat(directory, name, 0);
}

void process_pages_remove(struct process_pages *pages, int directory)
{
	if (pages->credit)
		open_gates(pages->credit);
	process_pages_close(pages);
	remove_files(directory, pages->number);
}

/* Opens the gates of one credit page by its file. False: it is none that we know. */
static bool open_gates_by_number(int directory, uint32_t number)
{
	struct mapping mapping = {0};
	const char *why = map_page(&mapping, directory, CREDIT, number, ALIQUOT_CREDIT_SIZE);
	if (!why)
		why = aliquot_credit_check(mapping.at, mapping.size);
	if (!why)
		open_gates(mapping.at);
	mapping_close(&mapping);
	return !why;
}

/* The number of the process whose credit page the file is; false: it is none. */
static bool is_credit(const char *name, uint32_t *number)
{
	return sscanf(name, CREDIT ".%" SCNu32, number) == 1;
}

static void open_one(int directory, const char *name, void *context)
{
	uint32_t number;
	if (is_credit(name, &number))
		*(unsigned *)context += open_gates_by_number(directory, number);
}

unsigned process_pages_open_gates_of(int directory)
{
	unsigned count = 0;
	directory_walk(directory, ".", open_one, &count);
	return count;
}

struct remover {
	bool (*is_used)(uint32_t number, void *context);
	void *context;
};

static void remove_one(int directory, const char *name, void *context)
{
	const struct remover *remover = context;
	uint32_t number;
	if (!is_credit(name, &number) || remover->is_used(number, remover->context))
		return;
	open_gates_by_number(directory, number);
	remove_files(directory, number);
}

void process_pages_remove_others(int directory, bool (*is_used)(uint32_t number, void *context),
                                 void *context)
{
	struct remover remover = {.is_used = is_used, .context = context};
	directory_walk(directory, ".", remove_one, &remover);
}
