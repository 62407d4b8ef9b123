/* Device memory, and the processes that use it. */
#include "machine/mig.h"
#include "nvml/nvml_sim.h"

#include <stdlib.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	NVML_UNIT(unit, device);
	NVML_NEED(memory);
	memory->total = machine_memory(&nvml.machine, unit);
	memory->used = machine_used(&nvml.machine, unit) + machine_reserved(&nvml.machine, unit);
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	NVML_UNIT(unit, device);
	NVML_NEED(memory);
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->total = machine_memory(&nvml.machine, unit);
	memory->reserved = machine_reserved(&nvml.machine, unit);
	memory->used = machine_used(&nvml.machine, unit);
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
	NVML_DEVICE(index, device);
	NVML_NEED(memory);
	uint64_t total = 1;
	while (total < nvml.machine.shape.memory)
		total *= 2;
	memory->bar1Total = total;
	memory->bar1Used = 2ull << 20;
	memory->bar1Free = total - memory->bar1Used;
	return NVML_SUCCESS;
}

/* As under MPS, WSL or vGPU, if ALIQUOT_SIMULATE_WITHOUT says so. */
static unsigned long long figure(uint64_t bytes)
{
	const char *without = getenv("ALIQUOT_SIMULATE_WITHOUT");
	return without && strstr(without, "process-memory")
			   ? (unsigned long long)NVML_VALUE_NOT_AVAILABLE
			   : bytes;
}

/* Whether processes of `other` are listed for `unit`: itself, or an instance of a GPU in MIG mode. */
static bool is_part(uint32_t unit, uint32_t other)
{
	const struct sim_map *map = nvml.machine.map;
	return other == unit || (!mig_is_gone(map, other) && machine_gpu(map, other) == unit);
}

static nvmlProcessInfo_v2_t entry(uint32_t slot, uint32_t unit)
{
	const struct sim_map *map = nvml.machine.map;
	const struct sim_instance *instance = mig_instance(map, unit);
	return (nvmlProcessInfo_v2_t){.pid = (unsigned)machine_pid(&nvml.machine, slot),
	                              .usedGpuMemory = map->processes[slot].usage[unit].bytes,
	                              .gpuInstanceId = instance ? instance->id : UINT32_MAX,
	                              .computeInstanceId = instance
	                                                       ? map->computes[unit - map->count].id
	                                                       : UINT32_MAX};
}

/* Writes at most `capacity` processes of the unit to `out`, and their total number to *count. */
static void list(uint32_t unit, nvmlProcessInfo_v2_t *out, unsigned int capacity,
                 unsigned int *count)
{
	struct sim_map *map = nvml.machine.map;
	*count = 0;
	machine_lock(&nvml.machine);
	machine_reap(&nvml.machine);
	for (uint32_t i = 0; i < map->high; i++)
		for (uint32_t other = 0; other < machine_units(map); other++) {
			const struct sim_usage *usage = &map->processes[i].usage[other];
			if (!machine_on_gpus(&map->processes[i]) || (!usage->contexts && !usage->bytes) ||
			    !is_part(unit, other))
				continue;
			if (*count < capacity)
				out[*count] = entry(i, other);
			++*count;
		}
	machine_unlock(&nvml.machine);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos)
{
	NVML_UNIT(unit, device);
	NVML_NEED(count && (infos || !*count));
	unsigned int capacity = *count;
	nvmlProcessInfo_v2_t *out = (nvmlProcessInfo_v2_t *)infos;
	list(unit, out, capacity, count);
	for (unsigned int i = 0; i < *count && i < capacity; i++)
		out[i].usedGpuMemory = figure(out[i].usedGpuMemory);
	return *count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(device, count, (nvmlProcessInfo_t *)infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos)
{
	NVML_UNIT(unit, device);
	NVML_NEED(count && (infos || !*count));
	static nvmlProcessInfo_v2_t all[SIM_MAX_PROCESSES];
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	unsigned int capacity = *count;
	pthread_mutex_lock(&lock);
	list(unit, all, SIM_MAX_PROCESSES, count);
	for (unsigned int i = 0; i < *count && i < capacity; i++)
		infos[i] = (nvmlProcessInfo_v1_t){all[i].pid, figure(all[i].usedGpuMemory)};
	pthread_mutex_unlock(&lock);
	return *count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t *details)
{
	NVML_UNIT(unit, device);
	NVML_NEED(details);
	if (details->version != nvmlProcessDetailList_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	static nvmlProcessInfo_v2_t all[SIM_MAX_PROCESSES];
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	unsigned int capacity = details->procArray ? details->numProcArrayEntries : 0, count = 0;
	pthread_mutex_lock(&lock);
	if (details->mode == 0)
		list(unit, all, SIM_MAX_PROCESSES, &count);
	for (unsigned int i = 0; i < count && i < capacity; i++)
		details->procArray[i] =
			(nvmlProcessDetail_v1_t){.pid = all[i].pid,
			                         .usedGpuMemory = all[i].usedGpuMemory,
			                         .gpuInstanceId = all[i].gpuInstanceId,
			                         .computeInstanceId = all[i].computeInstanceId};
	pthread_mutex_unlock(&lock);
	details->numProcArrayEntries = count;
	return count > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Graphics and MPS processes are not simulated. */
static nvmlReturn_t none(nvmlDevice_t device, unsigned int *count)
{
	NVML_UNIT(unit, device);
	NVML_NEED(count);
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *infos)
{
	(void)infos;
	return none(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_v2_t *infos)
{
	(void)infos;
	return none(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                   nvmlProcessInfo_v1_t *infos)
{
	(void)infos;
	return none(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_t *infos)
{
	(void)infos;
	return none(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v2_t *infos)
{
	(void)infos;
	return none(device, count);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v1_t *infos)
{
	(void)infos;
	return none(device, count);
}
