#include "page_file.h"

#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than the C library's headers may be. */
#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#define TREE_CLONE 1u
#define MOUNT_READ_ONLY 1u
#define BLOCK 512u /* the unit of st_blocks */
#define HUGE_PAGE (2u << 20)

struct mount_attributes {
	uint64_t set, clear, propagation, user_namespace;
};

int page_file_make(int directory, const char *name, size_t size, mode_t mode)
{
	int fd = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	int error = -posix_fallocate(fd, 0, (off_t)size);
	if (!error && fchmod(fd, mode))
		error = -errno;
	if (error) {
		close(fd);
		unlinkat(directory, name, 0);
		return error;
	}
	return fd;
}

bool page_file_trim(int fd, size_t size)
{
	struct stat status;
	if (fstat(fd, &status))
		return false;
	/* Space can be allocated behind the end too; huge pages take some by themselves. */
	bool is_longer = status.st_size > (off_t)size;
	bool takes_more = (uint64_t)status.st_blocks * BLOCK > size + HUGE_PAGE;
	if (is_longer || takes_more) {
		int ignored = ftruncate(fd, (off_t)size);
		(void)ignored;
	}
	return is_longer;
}

/* The directory in a mount of our own that is read-only, attached nowhere; or -errno. */
static int clone_read_only(int directory)
{
	struct mount_attributes attributes = {.set = MOUNT_READ_ONLY};
	int tree = (int)syscall(SYS_open_tree, directory, "", AT_EMPTY_PATH | TREE_CLONE | O_CLOEXEC);
	if (tree < 0)
		return -errno;
	if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof(attributes))) {
		int error = -errno;
		close(tree);
		return error;
	}
	return tree;
}

static bool unprotected;

bool page_file_protects(void)
{
	return !unprotected;
}

int page_file_open_for_readers(int directory, const char *name)
{
	int tree = clone_read_only(directory);
	if (tree < 0 && !unprotected) {
		unprotected = true;
		if (geteuid() == 0)
			log_event("descriptors are not protected against root in a container (needs Linux 5.12 "
			          "and CAP_SYS_ADMIN): %s",
			          strerror(-tree));
	}
	int fd = openat(tree < 0 ? directory : tree, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	int error = fd < 0 ? -errno : 0;
	if (tree >= 0)
		close(tree);
	return error ? error : fd;
}
