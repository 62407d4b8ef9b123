/* GPU instances and compute instances: profiles, places, making and destroying.
 *
 * The handle of an instance is the address of its entry in the machine's file. Only root and the owner of
 * the machine's folder are privileged.
 */
#include "machine/mig.h"
#include "nvml/nvml_sim.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NVML_PRIVILEGED()                                                                          \
	if (!nvml_is_privileged())                                                                     \
	return NVML_ERROR_NO_PERMISSION

/* Declares `instance`, the index of a GPU instance, or returns the error. */
#define NVML_INSTANCE(instance, handle)                                                            \
	uint32_t instance;                                                                             \
	do {                                                                                           \
		NVML_READY();                                                                              \
		instance = instance_of(handle);                                                            \
		NVML_NEED(instance != SIM_NONE);                                                           \
	} while (0)

static struct sim_map *map(void)
{
	return nvml.machine.map;
}

static const struct sim_shape *shape(void)
{
	return &nvml.machine.shape;
}

bool nvml_is_privileged(void)
{
	struct stat st;
	return !geteuid() || (!fstat(nvml.machine.fd, &st) && st.st_uid == geteuid());
}

static uint32_t instance_of(nvmlGpuInstance_t handle)
{
	const struct sim_instance *one = (const struct sim_instance *)handle;
	bool valid = one >= map()->instances && one < map()->instances + SIM_MAX_INSTANCES;
	return valid && one->used ? (uint32_t)(one - map()->instances) : SIM_NONE;
}

static uint32_t compute_of(nvmlComputeInstance_t handle)
{
	const struct sim_compute *one = (const struct sim_compute *)handle;
	bool valid = one >= map()->computes && one < map()->computes + SIM_MAX_INSTANCES;
	return valid && one->used ? (uint32_t)(one - map()->computes) : SIM_NONE;
}

/* The device's index and the index of a profile, for calls that need the GPU to be in MIG mode. */
static nvmlReturn_t find_profile(nvmlDevice_t device, unsigned int id, bool mode, uint32_t *index,
                                 uint32_t *profile)
{
	nvmlReturn_t result = nvml_device_index(device, index);
	if (result)
		return result;
	if (!shape()->profile_count || (mode && !map()->mig[*index]))
		return NVML_ERROR_NOT_SUPPORTED;
	*profile = mig_profile(shape(), id);
	return *profile == SIM_NONE ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

static nvmlReturn_t profile_of_kind(nvmlDevice_t device, unsigned int kind,
                                    const struct sim_profile **out)
{
	NVML_DEVICE(index, device);
	NVML_NEED(kind < NVML_GPU_INSTANCE_PROFILE_COUNT);
	for (uint32_t i = 0; i < shape()->profile_count; i++)
		if (shape()->profiles[i].kind == kind) {
			*out = &shape()->profiles[i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int kind,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
	const struct sim_profile *p;
	NVML_NEED(info);
	nvmlReturn_t result = profile_of_kind(device, kind, &p);
	if (result)
		return result;
	*info = (nvmlGpuInstanceProfileInfo_t){.id = p->id,
	                                       .sliceCount = p->slices,
	                                       .instanceCount = p->most,
	                                       .multiprocessorCount = p->sms,
	                                       .copyEngineCount = p->slices,
	                                       .memorySizeMB = p->memory >> 20};
	return NVML_SUCCESS;
}

static nvmlReturn_t describe(const struct sim_profile *p, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	if (info->version != nvmlGpuInstanceProfileInfo_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	*info = (nvmlGpuInstanceProfileInfo_v2_t){.version = nvmlGpuInstanceProfileInfo_v2,
	                                          .id = p->id,
	                                          .sliceCount = p->slices,
	                                          .instanceCount = p->most,
	                                          .multiprocessorCount = p->sms,
	                                          .copyEngineCount = p->slices,
	                                          .memorySizeMB = p->memory >> 20};
	snprintf(info->name, sizeof(info->name), "MIG %s", p->name);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int kind,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
	const struct sim_profile *p;
	NVML_NEED(info);
	nvmlReturn_t result = profile_of_kind(device, kind, &p);
	return result ? result : describe(p, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info)
{
	uint32_t index, profile;
	NVML_NEED(info);
	nvmlReturn_t result = find_profile(device, id, false, &index, &profile);
	return result ? result : describe(&shape()->profiles[profile], info);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t *places,
                                                           unsigned int *count)
{
	uint32_t index, profile;
	NVML_NEED(count);
	nvmlReturn_t result = find_profile(device, id, false, &index, &profile);
	if (result)
		return result;
	NVML_PRIVILEGED();
	const struct sim_profile *p = &shape()->profiles[profile];
	unsigned int capacity = places ? *count : 0;
	*count = 0;
	for (uint32_t start = 0; start < SIM_MEMORY_SLICES; start++)
		if (p->starts & 1u << start) {
			if (*count < capacity)
				places[*count] = (nvmlGpuInstancePlacement_t){start, p->size};
			++*count;
		}
	return places && *count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                        nvmlGpuInstancePlacement_t *places,
                                                        unsigned int *count)
{
	return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, places, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                       unsigned int *count)
{
	uint32_t index, profile;
	NVML_NEED(count);
	nvmlReturn_t result = find_profile(device, id, true, &index, &profile);
	if (result)
		return result;
	NVML_PRIVILEGED();
	machine_lock(&nvml.machine);
	*count = mig_left(map(), shape(), index, profile);
	machine_unlock(&nvml.machine);
	return NVML_SUCCESS;
}

/* Makes an instance at `place`, or anywhere (NULL): from the last place on, as has been seen. */
static nvmlReturn_t make(nvmlDevice_t device, unsigned int id,
                         const nvmlGpuInstancePlacement_t *place, nvmlGpuInstance_t *out)
{
	uint32_t index, profile, made = SIM_NONE;
	NVML_NEED(out);
	nvmlReturn_t result = find_profile(device, id, true, &index, &profile);
	if (result)
		return result;
	NVML_PRIVILEGED();
	const struct sim_profile *p = &shape()->profiles[profile];
	NVML_NEED(!place || (place->size == p->size && place->start < SIM_MEMORY_SLICES &&
	                     p->starts & 1u << place->start));
	machine_lock(&nvml.machine);
	if (place)
		made = mig_make(map(), shape(), index, profile, place->start);
	for (uint32_t start = SIM_MEMORY_SLICES; !place && made == SIM_NONE && start-- > 0;)
		made = mig_make(map(), shape(), index, profile, start);
	machine_unlock(&nvml.machine);
	if (made == SIM_NONE)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	*out = (nvmlGpuInstance_t)&map()->instances[made];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id,
                                         nvmlGpuInstance_t *out)
{
	return make(device, id, NULL, out);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t *place,
                                                      nvmlGpuInstance_t *out)
{
	NVML_NEED(place);
	return make(device, id, place, out);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle)
{
	NVML_INSTANCE(instance, handle);
	NVML_PRIVILEGED();
	machine_lock(&nvml.machine);
	bool divided = mig_is_divided(map(), instance);
	if (!divided)
		map()->instances[instance].used = 0;
	machine_unlock(&nvml.machine);
	return divided ? NVML_ERROR_IN_USE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out,
                                       unsigned int *count)
{
	uint32_t index, profile;
	NVML_NEED(out && count);
	nvmlReturn_t result = find_profile(device, id, true, &index, &profile);
	if (result)
		return result;
	NVML_PRIVILEGED();
	*count = 0;
	machine_lock(&nvml.machine);
	for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++) {
		const struct sim_instance *one = &map()->instances[i];
		if (one->used && one->gpu == index && one->profile == profile)
			out[(*count)++] = (nvmlGpuInstance_t)one;
	}
	machine_unlock(&nvml.machine);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                          nvmlGpuInstance_t *out)
{
	NVML_DEVICE(index, device);
	NVML_NEED(out);
	if (!map()->mig[index])
		return NVML_ERROR_NOT_SUPPORTED;
	NVML_PRIVILEGED();
	for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++) {
		const struct sim_instance *one = &map()->instances[i];
		if (one->used && one->gpu == index && one->id == id) {
			*out = (nvmlGpuInstance_t)one;
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info)
{
	NVML_INSTANCE(instance, handle);
	NVML_NEED(info);
	const struct sim_instance *one = &map()->instances[instance];
	const struct sim_profile *p = &shape()->profiles[one->profile];
	*info = (nvmlGpuInstanceInfo_t){.device = (nvmlDevice_t)&nvml.devices[one->gpu],
	                                .id = one->id,
	                                .profileId = p->id,
	                                .placement = {one->start, p->size}};
	return NVML_SUCCESS;
}

/* The compute slices of each kind of compute instance; 0: not simulated. A profile's id is its kind. */
static const uint32_t slices_of[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {
	[NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE] = 1, [NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE] = 2,
	[NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE] = 3, [NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE] = 4,
	[NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE] = 7,
};

static uint32_t kind_of(uint32_t slices)
{
	uint32_t kind = 0;
	while (slices_of[kind] != slices)
		kind++;
	return kind;
}

/* The compute slices of a profile in a GPU instance. */
static nvmlReturn_t find_slices(uint32_t instance, unsigned int kind, uint32_t *slices)
{
	NVML_NEED(kind < NVML_COMPUTE_INSTANCE_PROFILE_COUNT);
	*slices = slices_of[kind];
	return *slices && *slices <= shape()->profiles[map()->instances[instance].profile].slices
			   ? NVML_SUCCESS
			   : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle,
                                                          unsigned int kind, unsigned int engine,
                                                          nvmlComputeInstanceProfileInfo_t *info)
{
	NVML_INSTANCE(instance, handle);
	NVML_NEED(info && engine < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
	uint32_t slices;
	nvmlReturn_t result = find_slices(instance, kind, &slices);
	if (result)
		return result;
	const struct sim_profile *p = &shape()->profiles[map()->instances[instance].profile];
	*info = (nvmlComputeInstanceProfileInfo_t){.id = kind,
	                                           .sliceCount = slices,
	                                           .instanceCount = p->slices / slices,
	                                           .multiprocessorCount = p->sms * slices / p->slices,
	                                           .sharedCopyEngineCount = p->slices};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
	nvmlGpuInstance_t handle, unsigned int kind, unsigned int engine,
	nvmlComputeInstanceProfileInfo_v2_t *info)
{
	NVML_NEED(info);
	if (info->version != nvmlComputeInstanceProfileInfo_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlComputeInstanceProfileInfo_t old;
	nvmlReturn_t result = nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, kind, engine, &old);
	if (result)
		return result;
	const struct sim_profile *p = &shape()->profiles[map()->instances[instance_of(handle)].profile];
	*info = (nvmlComputeInstanceProfileInfo_v2_t){.version = nvmlComputeInstanceProfileInfo_v2,
	                                              .id = old.id,
	                                              .sliceCount = old.sliceCount,
	                                              .instanceCount = old.instanceCount,
	                                              .multiprocessorCount = old.multiprocessorCount,
	                                              .sharedCopyEngineCount = p->slices};
	if (old.sliceCount == p->slices)
		snprintf(info->name, sizeof(info->name), "MIG %s", p->name);
	else
		snprintf(info->name, sizeof(info->name), "MIG %uc.%s", old.sliceCount, p->name);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(
	nvmlGpuInstance_t handle, unsigned int kind, nvmlComputeInstancePlacement_t *places,
	unsigned int *count)
{
	NVML_INSTANCE(instance, handle);
	NVML_NEED(count);
	uint32_t slices;
	nvmlReturn_t result = find_slices(instance, kind, &slices);
	if (result)
		return result;
	NVML_PRIVILEGED();
	uint32_t all = shape()->profiles[map()->instances[instance].profile].slices;
	unsigned int capacity = places ? *count : 0;
	*count = 0;
	for (uint32_t start = 0; start + slices <= all; start++) {
		if (*count < capacity)
			places[*count] = (nvmlComputeInstancePlacement_t){start, slices};
		++*count;
	}
	return places && *count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle,
                                                                unsigned int kind,
                                                                unsigned int *count)
{
	NVML_INSTANCE(instance, handle);
	NVML_NEED(count);
	uint32_t slices;
	nvmlReturn_t result = find_slices(instance, kind, &slices);
	if (result)
		return result;
	NVML_PRIVILEGED();
	uint32_t all = shape()->profiles[map()->instances[instance].profile].slices, start = 0;
	*count = 0;
	machine_lock(&nvml.machine);
	while (start + slices <= all) {
		bool fits = mig_compute_fits(map(), shape(), instance, start, slices);
		*count += fits;
		start += fits ? slices : 1;
	}
	machine_unlock(&nvml.machine);
	return NVML_SUCCESS;
}

static nvmlReturn_t make_compute(nvmlGpuInstance_t handle, unsigned int kind,
                                 const nvmlComputeInstancePlacement_t *place,
                                 nvmlComputeInstance_t *out)
{
	NVML_INSTANCE(instance, handle);
	NVML_NEED(out);
	uint32_t slices, made = SIM_NONE;
	nvmlReturn_t result = find_slices(instance, kind, &slices);
	if (result)
		return result;
	NVML_PRIVILEGED();
	NVML_NEED(!place || place->size == slices);
	machine_lock(&nvml.machine);
	machine_reap(&nvml.machine);
	if (place)
		made = mig_make_compute(map(), shape(), instance, place->start, slices);
	for (uint32_t start = 0; !place && made == SIM_NONE && start < SIM_COMPUTE_SLICES; start++)
		made = mig_make_compute(map(), shape(), instance, start, slices);
	machine_unlock(&nvml.machine);
	if (made == SIM_NONE)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	*out = (nvmlComputeInstance_t)&map()->computes[made];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned int kind,
                                                  nvmlComputeInstance_t *out)
{
	return make_compute(handle, kind, NULL, out);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
	nvmlGpuInstance_t handle, unsigned int kind, const nvmlComputeInstancePlacement_t *place,
	nvmlComputeInstance_t *out)
{
	NVML_NEED(place);
	return make_compute(handle, kind, place, out);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
	NVML_READY();
	uint32_t compute = compute_of(handle);
	NVML_NEED(compute != SIM_NONE);
	NVML_PRIVILEGED();
	machine_lock(&nvml.machine);
	machine_reap(&nvml.machine);
	bool used = mig_is_used(map(), map()->count + compute);
	if (!used)
		map()->computes[compute].used = 0;
	machine_unlock(&nvml.machine);
	return used ? NVML_ERROR_IN_USE : NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned int kind,
                                                nvmlComputeInstance_t *out, unsigned int *count)
{
	NVML_INSTANCE(instance, handle);
	NVML_NEED(out && count);
	uint32_t slices;
	nvmlReturn_t result = find_slices(instance, kind, &slices);
	if (result)
		return result;
	NVML_PRIVILEGED();
	*count = 0;
	for (uint32_t i = 0; i < map()->computes_high; i++) {
		const struct sim_compute *one = &map()->computes[i];
		if (one->used && one->instance == instance && one->slices == slices)
			out[(*count)++] = (nvmlComputeInstance_t)one;
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned int id,
                                                   nvmlComputeInstance_t *out)
{
	NVML_INSTANCE(instance, handle);
	NVML_NEED(out);
	NVML_PRIVILEGED();
	for (uint32_t i = 0; i < map()->computes_high; i++) {
		const struct sim_compute *one = &map()->computes[i];
		if (one->used && one->instance == instance && one->id == id) {
			*out = (nvmlComputeInstance_t)one;
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle,
                                           nvmlComputeInstanceInfo_t *info)
{
	NVML_READY();
	uint32_t compute = compute_of(handle);
	NVML_NEED(info && compute != SIM_NONE);
	const struct sim_compute *one = &map()->computes[compute];
	const struct sim_instance *instance = &map()->instances[one->instance];
	*info = (nvmlComputeInstanceInfo_t){.device = (nvmlDevice_t)&nvml.devices[instance->gpu],
	                                    .gpuInstance = (nvmlGpuInstance_t)instance,
	                                    .id = one->id,
	                                    .profileId = kind_of(one->slices),
	                                    .placement = {one->start, one->slices}};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t handle,
                                        nvmlComputeInstanceInfo_t *info)
{
	return nvmlComputeInstanceGetInfo_v2(handle, info);
}
