#include "directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

int directory_walk(int parent, const char *name,
                   void (*each)(int directory, const char *entry, void *context), void *context)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	DIR *directory = fdopendir(fd);
	if (!directory) {
		int error = -errno;
		close(fd);
		return error;
	}
	struct dirent *entry;
	while ((entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			each(fd, entry->d_name, context);
	closedir(directory);
	return 0;
}

static void remove_file(int directory, const char *entry, void *context)
{
	(void)context;
	unlinkat(directory, entry, 0);
}

void directory_remove_files(int parent, const char *name)
{
	directory_walk(parent, name, remove_file, NULL);
}
