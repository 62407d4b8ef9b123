#include "pages.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Read by the handler. The fault is raised by our own touch of a page, never in the middle of a
 * change of this list. */
static struct pages *all;

static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
	(void)context;
	uintptr_t address = (uintptr_t)info->si_addr;
	for (struct pages *pages = all; pages; pages = pages->next) {
		uintptr_t start = (uintptr_t)pages->at;
		if (address < start || address - start >= pages->size)
			continue;
		void *zeroes = mmap(pages->at, pages->size, PROT_READ | PROT_WRITE,
		                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		if (zeroes == MAP_FAILED)
			break;
		pages->lost = 1;
		return;
	}
	signal(signal_number, SIG_DFL);
}

int pages_guard(void)
{
	struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
	sigemptyset(&action.sa_mask);
	return sigaction(SIGBUS, &action, NULL) ? -errno : 0;
}

int pages_map(struct pages *pages, int fd, size_t least)
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
	*pages = (struct pages){.at = at, .size = least, .next = all};
	all = pages;
	return 0;
}

void pages_unmap(struct pages *pages)
{
	if (!pages->at)
		return;
	struct pages **link = &all;
	while (*link && *link != pages)
		link = &(*link)->next;
	if (*link)
		*link = pages->next;
	munmap(pages->at, pages->size);
	memset(pages, 0, sizeof(*pages));
}
