/* Reads the versions of the simulated driver. See driver.h. */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILE_SIZE 128

void driver_read(const struct machine *m, struct driver *driver)
{
	*driver = (struct driver){.library = SIM_DRIVER, .module = SIM_DRIVER};
	char text[FILE_SIZE], *rest = text;
	int fd = openat(m->folder, "driver", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t used = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[used > 0 ? used : 0] = 0;
	for (char *line; (line = strsep(&rest, "\n"));) {
		char name[16], version[SIM_VERSION_SIZE];
		if (sscanf(line, "%15s %31s", name, version) != 2)
			continue;
		if (!strcmp(name, "library"))
			memcpy(driver->library, version, sizeof(version));
		if (!strcmp(name, "module"))
			memcpy(driver->module, version, sizeof(version));
	}
}

bool driver_fits(const struct machine *m, const char *library)
{
	struct driver now;
	driver_read(m, &now);
	return !strcmp(now.module, library);
}

bool driver_is_loaded(const struct machine *m)
{
	return !driver_fits(m, "none");
}
