/* The versions of the simulated driver: the file `driver` in the machine's folder, which tests replace.
 *
 *   library VERSION   of the two libraries, for processes that load them from now on
 *   module VERSION    of the kernel module; `none`: it is not loaded
 *
 * A version that the file does not give is SIM_DRIVER. A process keeps the version of the libraries that
 * it loaded, and can start to use a GPU only while the module has the same version. If the module changes
 * under it, NVML no longer answers; programs that use a GPU go on.
 */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "machine.h"

#define SIM_DRIVER "580.159.04"
#define SIM_VERSION_SIZE 32

struct driver {
	char library[SIM_VERSION_SIZE];
	char module[SIM_VERSION_SIZE];
};

/* The versions now. */
void driver_read(const struct machine *m, struct driver *driver);

/* Whether the module works with libraries of that version. */
bool driver_fits(const struct machine *m, const char *library);

/* Whether there is a module. */
bool driver_is_loaded(const struct machine *m);

#endif
