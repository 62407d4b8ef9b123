/* GPU time of each process: recently and in total. */
#include "machine/schedule.h"
#include "nvml/nvml_sim.h"

#include <string.h>
#include <time.h>

#define WINDOW_NS 1000000000ull

static unsigned long long now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (unsigned long long)t.tv_sec * 1000000u + (unsigned long long)t.tv_nsec / 1000u;
}

/* Percent of the last second that the process of `slot` had the GPU. Precondition: the file's lock is
 * held. */
static unsigned int use(uint32_t slot, uint32_t index)
{
	const struct sim_usage *usage = &nvml.machine.map->processes[slot].usage[index];
	uint64_t busy = schedule_busy(&usage->history, machine_now(), WINDOW_NS);
	return busy >= WINDOW_NS ? 100 : (unsigned int)(busy * 100 / WINDOW_NS);
}

static bool on_gpu(uint32_t slot, uint32_t index)
{
	const struct sim_process *p = &nvml.machine.map->processes[slot];
	return machine_on_gpus(p) && p->usage[index].contexts;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since)
{
	NVML_WHOLE(index, device);
	NVML_NEED(count);
	unsigned int capacity = samples ? *count : 0, n = 0;
	unsigned long long now = now_us();
	machine_lock(&nvml.machine);
	machine_reap(&nvml.machine);
	engine_advance(&nvml.machine, index);
	for (uint32_t i = 0; i < nvml.machine.map->high && since < now; i++) {
		unsigned int percent = on_gpu(i, index) ? use(i, index) : 0;
		if (!percent)
			continue;
		if (n < capacity)
			samples[n] = (nvmlProcessUtilizationSample_t){.pid = (unsigned int)
			                                                  machine_pid(&nvml.machine, i),
			                                              .timeStamp = now,
			                                              .smUtil = percent,
			                                              .memUtil = percent / 2};
		n++;
	}
	machine_unlock(&nvml.machine);
	*count = n;
	if (n > capacity)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	return n ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	NVML_DEVICE(index, device);
	NVML_NEED(mode);
	*mode = nvml.machine.map->mig[index] ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size)
{
	NVML_DEVICE(index, device);
	NVML_NEED(size);
	*size = SIM_MAX_PROCESSES;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count,
                                         unsigned int *pids)
{
	NVML_WHOLE(index, device);
	NVML_NEED(count && (pids || !*count));
	unsigned int capacity = *count, n = 0;
	machine_lock(&nvml.machine);
	machine_reap(&nvml.machine);
	for (uint32_t i = 0; i < nvml.machine.map->high; i++) {
		if (!on_gpu(i, index))
			continue;
		if (n < capacity)
			pids[n] = (unsigned int)machine_pid(&nvml.machine, i);
		n++;
	}
	machine_unlock(&nvml.machine);
	*count = n;
	return n > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* `time` is the GPU time of the process's kernels in ms. Only live processes have an answer. */
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t *stats)
{
	NVML_WHOLE(index, device);
	NVML_NEED(stats);
	nvmlReturn_t result = NVML_ERROR_NOT_FOUND;
	machine_lock(&nvml.machine);
	machine_reap(&nvml.machine);
	engine_advance(&nvml.machine, index);
	for (uint32_t i = 0; i < nvml.machine.map->high; i++) {
		const struct sim_process *p = &nvml.machine.map->processes[i];
		if (!on_gpu(i, index) || (unsigned int)machine_pid(&nvml.machine, i) != pid)
			continue;
		*stats = (nvmlAccountingStats_t){.gpuUtilization = use(i, index),
		                                 .memoryUtilization = use(i, index) / 2,
		                                 .maxMemoryUsage = p->usage[index].bytes,
		                                 .time = p->usage[index].busy_ns / 1000000u,
		                                 .startTime = p->since_us,
		                                 .isRunning = 1};
		result = NVML_SUCCESS;
	}
	machine_unlock(&nvml.machine);
	return result;
}
