/* A program with a driver of its own inside, as static programs have it: on the simulated machine it
 * takes a context and 1 GiB, says so, and stays until the end of its input. */
#include "machine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

/* The simulation looks for its shapes beside itself; a static program is told nothing of itself. */
int dladdr(const void *address, Dl_info *info)
{
	*info = (Dl_info){.dli_fname = "/bin/stranger", .dli_saddr = (void *)address};
	return 1;
}

int main(void)
{
	struct machine machine;
	char why[256], rest[64];
	if (!machine_open(&machine, why, sizeof(why)) || !machine_enter(&machine)) {
		puts(why);
		return 1;
	}
	machine_count_contexts(&machine, 0, 1);
	puts(machine_take(&machine, 0, 1ull << 30) ? "taken" : "full");
	fflush(stdout);
	while (read(0, rest, sizeof(rest)) > 0)
		;
	return 0;
}
