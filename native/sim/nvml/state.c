/* The library's state, and what all of its files share. See nvml_sim.h. */
#include "machine/mig.h"
#include "nvml/nvml_sim.h"

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
	nvmlReturn_t result = nvml_device_unit(device, index);
	return result || *index < nvml.machine.shape.count ? result : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvml_device_unit(nvmlDevice_t device, uint32_t *unit)
{
	NVML_READY();
	const struct nvml_device *d = (const struct nvml_device *)device;
	if (d < nvml.devices || d >= nvml.devices + machine_units(nvml.machine.map) ||
	    mig_is_gone(nvml.machine.map, d->index))
		return NVML_ERROR_INVALID_ARGUMENT;
	*unit = d->index;
	uint32_t gpu = machine_gpu(nvml.machine.map, *unit);
	struct health health;
	while ((health = nvml_health(gpu)).hangs)
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

nvmlReturn_t nvml_give(uint32_t unit, nvmlDevice_t *device)
{
	uint32_t ignored;
	nvmlReturn_t result = nvml_device_unit((nvmlDevice_t)&nvml.devices[unit], &ignored);
	if (result == NVML_SUCCESS)
		*device = (nvmlDevice_t)&nvml.devices[unit];
	return result;
}
