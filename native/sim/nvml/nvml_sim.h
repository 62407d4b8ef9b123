/* The simulated NVML: a view of the machine for monitoring.
 *
 * It reads the same file as the simulated driver (machine/machine.h) and uses no GPU itself. Every query
 * about memory or processes first clears the entries of dead processes. An nvmlDevice_t is the address of
 * a struct nvml_device. Calls about MIG devices are in mig.c, those about their parts in instance.c.
 */
#ifndef NVML_SIM_H
#define NVML_SIM_H

#ifndef NVML_NO_UNVERSIONED_FUNC_DEFS
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#endif
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include "machine/driver.h"
#include "machine/engine.h"
#include "machine/health.h"
#include "machine/machine.h"

struct nvml_device {
	uint32_t index; /* the unit: a GPU, or a MIG device (a compute instance) */
};

extern struct nvml_state {
	int users;                      /* calls of nvmlInit minus calls of nvmlShutdown */
	char version[SIM_VERSION_SIZE]; /* of this library */
	uint64_t since;                 /* where the health file ended when the session began */
	struct machine machine;
	struct nvml_device devices[SIM_UNITS];
} nvml;

/* Declares `index`, the device's index, or returns the error: an invalid handle, a lost GPU, or another
 * module. */
#define NVML_DEVICE(index, device)                                                                 \
	uint32_t index;                                                                                \
	do {                                                                                           \
		nvmlReturn_t result_ = nvml_device_index(device, &index);                                  \
		if (result_)                                                                               \
			return result_;                                                                        \
	} while (0)

/* The same for a call that takes MIG devices too: declares `unit`. */
#define NVML_UNIT(unit, device)                                                                    \
	uint32_t unit;                                                                                 \
	do {                                                                                           \
		nvmlReturn_t result_ = nvml_device_unit(device, &unit);                                    \
		if (result_)                                                                               \
			return result_;                                                                        \
	} while (0)

/* The same as NVML_DEVICE for a call that a GPU in MIG mode does not support. */
#define NVML_WHOLE(index, device)                                                                  \
	NVML_DEVICE(index, device);                                                                    \
	if (nvml.machine.map->mig[index])                                                              \
	return NVML_ERROR_NOT_SUPPORTED

#define NVML_READY()                                                                               \
	if (!nvml.users)                                                                               \
	return NVML_ERROR_UNINITIALIZED

#define NVML_NEED(condition)                                                                       \
	if (!(condition))                                                                              \
	return NVML_ERROR_INVALID_ARGUMENT

/* state.c */
struct health nvml_health(uint32_t index);
nvmlReturn_t nvml_device_index(nvmlDevice_t device, uint32_t *index);
nvmlReturn_t nvml_device_unit(nvmlDevice_t device, uint32_t *unit);
nvmlReturn_t nvml_copy_text(char *out, unsigned int length, const char *text);
uint32_t nvml_index(uint32_t unit); /* of a GPU, or of a MIG device on its GPU (mig.c) */
bool nvml_is_privileged(void);      /* may make instances (instance.c) */
nvmlReturn_t nvml_give(uint32_t unit, nvmlDevice_t *device); /* the handle of a unit */

#endif
