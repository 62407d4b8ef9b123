#include "process_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Newer than the C library's headers may be. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 16
#endif

static size_t work_size(uint32_t slices)
{
	return (size_t)slices * ALIQUOT_WORK_SIZE;
}

/* The descriptor, or -errno. */
static int make_memory(const char *name, size_t size)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL) /* an older kernel without that flag */
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	int error = -posix_fallocate(fd, 0, (off_t)size);
	if (error) {
		close(fd);
		return error;
	}
	return fd;
}

static int write_at(int fd, const void *bytes, size_t size, off_t at)
{
	ssize_t written = pwrite(fd, bytes, size, at);
	if (written < 0)
		return -errno;
	return (size_t)written == size ? 0 : -EIO;
}

static int fill_credit(int fd)
{
	struct aliquot_credit credit = {
		.magic = ALIQUOT_CREDIT_MAGIC,
		.version = ALIQUOT_VERSION,
		.size = ALIQUOT_CREDIT_SIZE,
	};
	for (uint32_t i = 0; i < ALIQUOT_MAX_GPUS; i++) {
		credit.slices[i].credit = ALIQUOT_OPEN;
		credit.slices[i].quantum_ns = ALIQUOT_QUANTUM_NS;
	}
	return write_at(fd, &credit, sizeof(credit), 0);
}

static int fill_work(int fd, uint32_t slices)
{
	struct {
		uint64_t magic;
		uint32_t version, size;
	} header = {ALIQUOT_WORK_MAGIC, ALIQUOT_VERSION, ALIQUOT_WORK_SIZE};
	_Static_assert(offsetof(struct aliquot_work_slice, opened) == sizeof(header),
	               "the header comes first");
	int error = 0;
	for (uint32_t i = 0; !error && i < slices; i++)
		error = write_at(fd, &header, sizeof(header), (off_t)work_size(i));
	return error;
}

int process_pages_make(uint32_t slices, struct process_page_fds *fds)
{
	fds->credit = make_memory("aliquot-credit", ALIQUOT_CREDIT_SIZE);
	if (fds->credit < 0)
		return fds->credit;
	fds->work = make_memory("aliquot-work", work_size(slices));
	int error = fds->work < 0 ? fds->work : fill_credit(fds->credit);
	if (!error)
		error = fill_work(fds->work, slices);
	if (error)
		process_pages_close(fds);
	return error;
}

void process_pages_close(const struct process_page_fds *fds)
{
	close(fds->credit);
	if (fds->work >= 0)
		close(fds->work);
}

int process_pages_map(const struct process_page_fds *fds, uint32_t slices,
                      struct process_pages *out)
{
	void *credit = mmap(NULL, ALIQUOT_CREDIT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fds->credit,
	                    0);
	if (credit == MAP_FAILED)
		return -errno;
	void *work = mmap(NULL, work_size(slices), PROT_READ, MAP_SHARED, fds->work, 0);
	if (work == MAP_FAILED) {
		int error = -errno;
		munmap(credit, ALIQUOT_CREDIT_SIZE);
		return error;
	}
	*out = (struct process_pages){.credit = credit, .work = work, .slices = slices};
	return 0;
}

void process_pages_unmap(struct process_pages *pages)
{
	if (!pages->credit)
		return;
	munmap(pages->credit, ALIQUOT_CREDIT_SIZE);
	munmap((void *)pages->work, work_size(pages->slices));
	memset(pages, 0, sizeof(*pages));
}

int process_pages_seal(const struct process_page_fds *fds)
{
	int size = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	if (fcntl(fds->credit, F_ADD_SEALS, size | F_SEAL_FUTURE_WRITE) ||
	    fcntl(fds->work, F_ADD_SEALS, size))
		return -errno;
	return 0;
}

void process_pages_open_gates(const struct process_pages *pages)
{
	for (uint32_t i = 0; i < pages->slices; i++) {
		struct aliquot_credit_slice *slice = &pages->credit->slices[i];
		atomic_store(&slice->credit, ALIQUOT_OPEN);
		atomic_store(&slice->pace, ALIQUOT_ALONE);
		atomic_store(&slice->ring, 0);
	}
}

bool process_pages_check_kernel(struct failure *failure)
{
	struct process_page_fds fds;
	int error = process_pages_make(1, &fds);
	if (!error) {
		error = process_pages_seal(&fds);
		process_pages_close(&fds);
	}
	if (!error)
		return true;
	return failure_set(failure, "kernel",
	                   "cannot seal memory against writing (needs Linux 5.1): %s",
	                   strerror(-error));
}
