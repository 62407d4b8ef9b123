/* MIG devices: the mode of a GPU, and handles of its compute instances. */
#include "machine/mig.h"
#include "nvml/nvml_sim.h"

static bool has_mig(void)
{
	return nvml.machine.shape.profile_count > 0;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	NVML_DEVICE(index, device);
	NVML_NEED(current && pending);
	if (!has_mig())
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = nvml.machine.map->mig[index];
	return NVML_SUCCESS;
}

static bool has_instances(uint32_t gpu)
{
	const struct sim_map *map = nvml.machine.map;
	for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++)
		if (map->instances[i].used && map->instances[i].gpu == gpu)
			return true;
	return false;
}

/* The mode changes at once: nothing needs a reset here, but no process may use the GPU. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status)
{
	NVML_DEVICE(index, device);
	NVML_NEED(status && mode <= NVML_DEVICE_MIG_ENABLE);
	if (!has_mig())
		return NVML_ERROR_NOT_SUPPORTED;
	if (!nvml_is_privileged())
		return NVML_ERROR_NO_PERMISSION;
	machine_lock(&nvml.machine);
	machine_reap(&nvml.machine);
	bool used = mig_is_used(nvml.machine.map, index) || has_instances(index);
	*status = used && mode != nvml.machine.map->mig[index] ? NVML_ERROR_IN_USE : NVML_SUCCESS;
	if (!used)
		nvml.machine.map->mig[index] = mode;
	machine_unlock(&nvml.machine);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	NVML_DEVICE(index, device);
	NVML_NEED(count);
	*count = nvml.machine.map->mig[index] ? SIM_COMPUTE_SLICES : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is)
{
	NVML_UNIT(unit, device);
	NVML_NEED(is);
	*is = unit >= nvml.machine.map->count;
	return NVML_SUCCESS;
}

/* The MIG devices of a GPU are counted in the order of their entries. */
uint32_t nvml_index(uint32_t unit)
{
	const struct sim_map *map = nvml.machine.map;
	uint32_t index = 0;
	if (unit < map->count)
		return unit;
	for (uint32_t other = map->count; other < unit; other++)
		index += !mig_is_gone(map, other) && machine_gpu(map, other) == machine_gpu(map, unit);
	return index;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int wanted,
                                                 nvmlDevice_t *out)
{
	NVML_DEVICE(index, device);
	NVML_NEED(out && wanted < SIM_COMPUTE_SLICES);
	const struct sim_map *map = nvml.machine.map;
	if (!map->mig[index])
		return NVML_ERROR_NOT_SUPPORTED;
	for (uint32_t unit = map->count; unit < machine_units(map); unit++)
		if (!mig_is_gone(map, unit) && machine_gpu(map, unit) == index &&
		    nvml_index(unit) == wanted)
			return nvml_give(unit, out);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
	NVML_UNIT(unit, device);
	NVML_NEED(out && unit >= nvml.machine.map->count);
	return nvml_give(machine_gpu(nvml.machine.map, unit), out);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	NVML_UNIT(unit, device);
	const struct sim_instance *instance = mig_instance(nvml.machine.map, unit);
	NVML_NEED(id && instance);
	*id = instance->id;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	NVML_UNIT(unit, device);
	NVML_NEED(id && mig_instance(nvml.machine.map, unit));
	*id = nvml.machine.map->computes[unit - nvml.machine.map->count].id;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	NVML_UNIT(unit, device);
	NVML_NEED(attributes);
	const struct sim_map *map = nvml.machine.map;
	const struct sim_instance *instance = mig_instance(map, unit);
	if (!instance)
		return NVML_ERROR_NOT_SUPPORTED;
	const struct sim_profile *profile = &nvml.machine.shape.profiles[instance->profile];
	*attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = machine_sms(&nvml.machine, unit),
	                                       .sharedCopyEngineCount = profile->slices,
	                                       .gpuInstanceSliceCount = profile->slices,
	                                       .computeInstanceSliceCount =
	                                           map->computes[unit - map->count].slices,
	                                       .memorySizeMB = profile->memory >> 20};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	return nvmlDeviceGetAttributes_v2(device, attributes);
}
