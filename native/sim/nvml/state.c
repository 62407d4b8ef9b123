/* The library's state, and what all of its files share. See nvml_sim.h. */
#include "nvml/nvml_sim.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOOK_NS 10000000

struct nvml_state nvml;

struct health nvml_health(uint32_t index)
{
	return health_of(&nvml.machine, index, nvml.since);
}

nvmlReturn_t nvml_device_index(nvmlDevice_t device, uint32_t *index)
{
	NVML_READY();
	const struct nvml_device *d = (const struct nvml_device *)device;
	if (d < nvml.devices || d >= nvml.devices + nvml.machine.shape.count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = d->index;
	struct health health;
	while ((health = nvml_health(*index)).hangs)
		nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
	if (health.lost)
		return NVML_ERROR_GPU_IS_LOST;
	return driver_fits(&nvml.machine, nvml.version) ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

nvmlReturn_t nvml_copy_text(char *out, unsigned int length, const char *text)
{
	NVML_NEED(out);
	if (length < strlen(text) + 1)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

void nvml_uuid(uint32_t index, char out[48])
{
	uint8_t u[16];
	machine_uuid(&nvml.machine, index, u);
	snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
	         u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
	         u[14], u[15]);
}
