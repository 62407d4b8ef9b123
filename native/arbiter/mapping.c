#include "mapping.h"

#include "aliquot/lock.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Two threads read pages, and the handler runs in the one that faulted. It never faults while it has the
 * lock: a change of the list touches no mapped page. */
static struct aliquot_lock changing;
static struct mapping *all;

/* Maps zeroes in place of the mapping that contains the address; false: there is none. */
static bool replace_by_zeroes(uintptr_t address)
{
	struct mapping *mapping = all;
	while (mapping &&
	       (address < (uintptr_t)mapping->at || address - (uintptr_t)mapping->at >= mapping->size))
		mapping = mapping->next;
	if (!mapping || mmap(mapping->at, mapping->size, PROT_READ | PROT_WRITE,
	                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return false;
	atomic_store(&mapping->truncated, true);
	return true;
}

static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
	(void)context;
	aliquot_lock(&changing);
	bool replaced = replace_by_zeroes((uintptr_t)info->si_addr);
	aliquot_unlock(&changing);
	if (!replaced)
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
	mapping->at = at;
	mapping->size = least;
	atomic_store(&mapping->truncated, false);
	aliquot_lock(&changing);
	mapping->next = all;
	all = mapping;
	aliquot_unlock(&changing);
	return 0;
}

void mapping_close(struct mapping *mapping)
{
	if (!mapping->at)
		return;
	aliquot_lock(&changing);
	struct mapping **link = &all;
	while (*link && *link != mapping)
		link = &(*link)->next;
	if (*link)
		*link = mapping->next;
	aliquot_unlock(&changing);
	munmap(mapping->at, mapping->size);
	mapping->at = NULL;
}
