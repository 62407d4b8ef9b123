/* The simulated NVML: a view of the machine for monitoring.
 *
 * It reads the same file as the simulated driver (machine/machine.h) and uses no GPU itself. Every query
 * about memory or processes first clears the entries of dead processes. An nvmlDevice_t is the address of
 * a struct nvml_device.
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
	uint32_t index;
};

extern struct nvml_state {
	int users;                      /* calls of nvmlInit minus calls of nvmlShutdown */
	char version[SIM_VERSION_SIZE]; /* of this library */
	uint64_t since;                 /* where the health file ended when the session began */
	struct machine machine;
	struct nvml_device devices[SIM_MAX_GPUS];
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

#define NVML_READY()                                                                               \
	if (!nvml.users)                                                                               \
	return NVML_ERROR_UNINITIALIZED

#define NVML_NEED(condition)                                                                       \
	if (!(condition))                                                                              \
	return NVML_ERROR_INVALID_ARGUMENT

/* state.c */
struct health nvml_health(uint32_t index);
nvmlReturn_t nvml_device_index(nvmlDevice_t device, uint32_t *index);
nvmlReturn_t nvml_copy_text(char *out, unsigned int length, const char *text);
void nvml_uuid(uint32_t index, char out[48]); /* "GPU-..." */

#endif
