#include "mapping.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Read by the handler. Only our own access to a mapping raises the fault, never a change of this
 * list. */
static struct mapping *all;

static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
	(void)context;
	uintptr_t address = (uintptr_t)info->si_addr;
	for (struct mapping *mapping = all; mapping; mapping = mapping->next) {
		uintptr_t start = (uintptr_t)mapping->at;
		if (address < start || address - start >= mapping->size)
			continue;
		void *zeroes = mmap(mapping->at, mapping->size, PROT_READ | PROT_WRITE,
		                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		if (zeroes == MAP_FAILED)
			break;
		mapping->truncated = 1;
		return;
	}
	signal(signal_number, SIG_DFL);
}

int mapping_catch_sigbus(void)
{
	struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
	sigemptyset(&action.sa_mask);
	return sigaction(SIGBUS, &action, NULL) ? -errno : 0;
}

int mapping_open(struct mapping *mapping, int fd, size_t least)
{
	struct stat status;
	if (fstat(fd, &status))
		return -errno;
	if (!S_ISREG(status.st_mode))
		return -EINVAL;
	if (status.st_size < 0 || (uint64_t)status.st_size < least)
		return -EFBIG;
	void *at = mmap(NULL, least, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	*mapping = (struct mapping){.at = at, .size = least, .next = all};
	all = mapping;
	return 0;
}

void mapping_close(struct mapping *mapping)
{
	if (!mapping->at)
		return;
	struct mapping **link = &all;
	while (*link && *link != mapping)
		link = &(*link)->next;
	if (*link)
		*link = mapping->next;
	munmap(mapping->at, mapping->size);
	memset(mapping, 0, sizeof(*mapping));
}
