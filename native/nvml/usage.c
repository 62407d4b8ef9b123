/* The slice as a GPU: its memory, and what the grant's processes use of it. */
#include "view.h"

#include <stdlib.h>

nvmlReturn_t hook_memory(__typeof__(&nvmlDeviceGetMemoryInfo) real, nvmlDevice_t device,
                         nvmlMemory_t *memory)
{
	nvmlReturn_t result = real(device, memory);
	uint32_t slice = view_slice(device);
	if (result != NVML_SUCCESS || slice == VIEW_NO_SLICE)
		return result;
	memory->total = view_open()->limits->slices[slice].limit_bytes;
	memory->used = view_used(slice);
	memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
	return result;
}

nvmlReturn_t hook_memory_v2(__typeof__(&nvmlDeviceGetMemoryInfo_v2) real, nvmlDevice_t device,
                            nvmlMemory_v2_t *memory)
{
	nvmlReturn_t result = real(device, memory);
	uint32_t slice = view_slice(device);
	if (result != NVML_SUCCESS || slice == VIEW_NO_SLICE)
		return result;
	memory->total = view_open()->limits->slices[slice].limit_bytes;
	memory->reserved = 0; /* the reserve of the GPU itself is not part of the slice */
	memory->used = view_used(slice);
	memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
	return result;
}

/* The next process of the slice, from slot *next on; false: no more. */
static bool next_process(uint32_t slice, uint32_t *next, nvmlProcessInfo_t *out)
{
	const struct aliquot_limits *limits = view_open()->limits;
	for (; *next < ALIQUOT_MAX_PROCESSES; ++*next) {
		uint64_t used = view_process_used(slice, *next);
		if (used == 0)
			continue;
		out->pid = (unsigned)limits->processes[*next].inner_pid;
		out->usedGpuMemory = used;
		out->gpuInstanceId = out->computeInstanceId = 0xFFFFFFFF;
		++*next;
		return true;
	}
	return false;
}

static unsigned count_processes(uint32_t slice)
{
	nvmlProcessInfo_t info;
	unsigned count = 0;
	for (uint32_t slot = 0; next_process(slice, &slot, &info);)
		count++;
	return count;
}

/* As NVML does: reports the count, and an error if the caller's buffer is too small. */
static nvmlReturn_t report_count(uint32_t slice, unsigned *count, const void *buffer)
{
	unsigned actual = count_processes(slice), given = buffer ? *count : 0;
	*count = actual;
	return actual > given ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t hook_processes(__typeof__(&nvmlDeviceGetComputeRunningProcesses_v3) real,
                            nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
	uint32_t slice = view_slice(device);
	if (slice == VIEW_NO_SLICE || !count)
		return real(device, count, infos);
	nvmlReturn_t result = report_count(slice, count, infos);
	unsigned most = *count, written = 0;
	uint32_t slot = 0;
	while (result == NVML_SUCCESS && written < most && next_process(slice, &slot, &infos[written]))
		written++;
	if (result == NVML_SUCCESS)
		*count = written;
	return result;
}

nvmlReturn_t hook_processes_v1(__typeof__(&nvmlDeviceGetComputeRunningProcesses) real,
                               nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
	uint32_t slice = view_slice(device);
	if (slice == VIEW_NO_SLICE || !count)
		return real(device, count, infos);
	nvmlReturn_t result = report_count(slice, count, infos);
	unsigned most = *count, written = 0;
	nvmlProcessInfo_t info;
	for (uint32_t slot = 0;
	     result == NVML_SUCCESS && written < most && next_process(slice, &slot, &info);)
		infos[written++] = (nvmlProcessInfo_v1_t){info.pid, info.usedGpuMemory};
	if (result == NVML_SUCCESS)
		*count = written;
	return result;
}

/* Graphics and MPS clients are outside the grant: its processes are listed as compute. */
nvmlReturn_t hook_no_processes(__typeof__(&nvmlDeviceGetGraphicsRunningProcesses_v3) real,
                               nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
	if (view_slice(device) == VIEW_NO_SLICE || !count)
		return real(device, count, infos);
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t hook_no_processes_v1(__typeof__(&nvmlDeviceGetGraphicsRunningProcesses) real,
                                  nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
	if (view_slice(device) == VIEW_NO_SLICE || !count)
		return real(device, count, infos);
	*count = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t hook_no_details(__typeof__(&nvmlDeviceGetRunningProcessDetailList) real,
                             nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
	return view_slice(device) == VIEW_NO_SLICE ? real(device, list) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t hook_no_utilization_info(__typeof__(&nvmlDeviceGetProcessesUtilizationInfo) real,
                                      nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
	return view_slice(device) == VIEW_NO_SLICE ? real(device, info) : NVML_ERROR_NOT_SUPPORTED;
}

/* Keeps the samples of the grant's processes, with their pids inside the container. */
static unsigned keep_own(nvmlProcessUtilizationSample_t *samples, unsigned count)
{
	const struct aliquot_limits *limits = view_open()->limits;
	unsigned kept = 0;
	for (unsigned i = 0; i < count; i++) {
		uint32_t slot = view_slot_of((int32_t)samples[i].pid);
		if (slot == ALIQUOT_MAX_PROCESSES)
			continue;
		samples[kept] = samples[i];
		samples[kept++].pid = (unsigned)limits->processes[slot].inner_pid;
	}
	return kept;
}

nvmlReturn_t hook_process_utilization(__typeof__(&nvmlDeviceGetProcessUtilization) real,
                                      nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                      unsigned *count, unsigned long long since)
{
	nvmlReturn_t result = real(device, samples, count, since);
	if (result == NVML_SUCCESS && samples && view_slice(device) != VIEW_NO_SLICE)
		*count = keep_own(samples, *count);
	return result;
}

/* Sums the newest sample of each process. */
static void sum_up(const nvmlProcessUtilizationSample_t *samples, unsigned count,
                   nvmlUtilization_t *sum)
{
	sum->gpu = sum->memory = 0;
	for (unsigned i = 0; i < count; i++) {
		bool newest = true;
		for (unsigned j = 0; j < count; j++)
			if (samples[j].pid == samples[i].pid && samples[j].timeStamp > samples[i].timeStamp)
				newest = false;
		if (newest) {
			sum->gpu += samples[i].smUtil;
			sum->memory += samples[i].memUtil;
		}
	}
	sum->gpu = sum->gpu < 100 ? sum->gpu : 100;
	sum->memory = sum->memory < 100 ? sum->memory : 100;
}

nvmlReturn_t hook_utilization(__typeof__(&nvmlDeviceGetUtilizationRates) real, nvmlDevice_t device,
                              nvmlUtilization_t *rates)
{
	nvmlReturn_t result = real(device, rates);
	if (result != NVML_SUCCESS || view_slice(device) == VIEW_NO_SLICE)
		return result;
	unsigned count = 0;
	nvmlReturn_t asked = REAL(nvmlDeviceGetProcessUtilization)(device, NULL, &count, 0);
	if (asked == NVML_ERROR_NOT_SUPPORTED || asked == NVML_ERROR_FUNCTION_NOT_FOUND)
		return result; /* this GPU has no figures by process: report the whole GPU's */
	nvmlProcessUtilizationSample_t *samples = calloc(count + 1, sizeof(*samples));
	rates->gpu = rates->memory = 0;
	if (samples && count &&
	    REAL(nvmlDeviceGetProcessUtilization)(device, samples, &count, 0) == NVML_SUCCESS)
		sum_up(samples, keep_own(samples, count), rates);
	free(samples);
	return result;
}
