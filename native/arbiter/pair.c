#include "pair.h"

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
	if (fd < 0 && errno == EINVAL) /* a kernel that cannot be told that it is no program */
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
	_Static_assert(offsetof(struct aliquot_work_slice, opened) == sizeof(header), "its beginning");
	int error = 0;
	for (uint32_t i = 0; !error && i < slices; i++)
		error = write_at(fd, &header, sizeof(header), (off_t)work_size(i));
	return error;
}

int pair_make(uint32_t slices, struct pair_fds *fds)
{
	fds->credit = make_memory("aliquot-credit", ALIQUOT_CREDIT_SIZE);
	if (fds->credit < 0)
		return fds->credit;
	fds->work = make_memory("aliquot-work", work_size(slices));
	int error = fds->work < 0 ? fds->work : fill_credit(fds->credit);
	if (!error)
		error = fill_work(fds->work, slices);
	if (error)
		pair_close(fds);
	return error;
}

void pair_close(const struct pair_fds *fds)
{
	close(fds->credit);
	if (fds->work >= 0)
		close(fds->work);
}

int pair_map(const struct pair_fds *fds, uint32_t slices, struct pair *out)
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
	*out = (struct pair){.credit = credit, .work = work, .slices = slices};
	return 0;
}

void pair_unmap(struct pair *pair)
{
	if (!pair->credit)
		return;
	munmap(pair->credit, ALIQUOT_CREDIT_SIZE);
	munmap((void *)pair->work, work_size(pair->slices));
	memset(pair, 0, sizeof(*pair));
}

int pair_seal(const struct pair_fds *fds)
{
	int size = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	if (fcntl(fds->credit, F_ADD_SEALS, size | F_SEAL_FUTURE_WRITE) ||
	    fcntl(fds->work, F_ADD_SEALS, size))
		return -errno;
	return 0;
}

void pair_open_gates(const struct pair *pair)
{
	for (uint32_t i = 0; i < pair->slices; i++) {
		struct aliquot_credit_slice *slice = &pair->credit->slices[i];
		atomic_store(&slice->credit, ALIQUOT_OPEN);
		atomic_store(&slice->pace, ALIQUOT_ALONE);
		atomic_store(&slice->ring, 0);
	}
}

bool pair_try(struct failure *failure)
{
	struct pair_fds fds;
	int error = pair_make(1, &fds);
	if (!error) {
		error = pair_seal(&fds);
		pair_close(&fds);
	}
	if (!error)
		return true;
	return failure_set(failure, "kernel",
	                   "no memory that is sealed against writing (needs Linux 5.1): %s",
	                   strerror(-error));
}
