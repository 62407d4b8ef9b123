/* Status of a device: utilization, clocks, power, temperature, modes, errors. */
#include "machine/schedule.h"
#include "nvml/nvml_sim.h"

#include <stdio.h>
#include <string.h>

#define WINDOW_NS 1000000000ull /* of the average utilization */
#define IDLE_CLOCK 345u
#define LOCAL_LIMIT 85u

static const struct sim_shape *shape(void)
{
	return &nvml.machine.shape;
}

/* Percent of the last second in which a kernel ran on the GPU. */
static unsigned int use(uint32_t index)
{
	machine_lock(&nvml.machine);
	engine_advance(&nvml.machine, index);
	const struct sim_gpu *gpu = &nvml.machine.map->gpus[index];
	uint64_t busy = schedule_busy(&gpu->history, machine_now(), WINDOW_NS);
	machine_unlock(&nvml.machine);
	return busy >= WINDOW_NS ? 100 : (unsigned int)(busy * 100 / WINDOW_NS);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
	NVML_WHOLE(index, device);
	NVML_NEED(rates);
	rates->gpu = use(index);
	rates->memory = rates->gpu / 2;
	return NVML_SUCCESS;
}

/* A unit (encoder, decoder, ...) that the GPU has and that is always idle. */
static nvmlReturn_t unused(nvmlDevice_t device, unsigned int *utilization, unsigned int *period)
{
	NVML_WHOLE(index, device);
	NVML_NEED(utilization && period);
	*utilization = 0;
	*period = 100000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                             unsigned int *period)
{
	return unused(device, utilization, period);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                             unsigned int *period)
{
	return unused(device, utilization, period);
}

nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned int *utilization,
                                         unsigned int *period)
{
	return unused(device, utilization, period);
}

nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned int *utilization,
                                         unsigned int *period)
{
	return unused(device, utilization, period);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
	NVML_DEVICE(index, device);
	NVML_NEED(milliwatts);
	*milliwatts = shape()->power * (100 + 9 * use(index));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	NVML_DEVICE(index, device);
	NVML_NEED(milliwatts);
	*milliwatts = shape()->power * 1000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
	return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *least,
                                                          unsigned int *most)
{
	NVML_DEVICE(index, device);
	NVML_NEED(least && most);
	*least = shape()->power * 300;
	*most = shape()->power * 1000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	NVML_DEVICE(index, device);
	NVML_NEED(mode);
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

static nvmlReturn_t state(nvmlDevice_t device, nvmlPstates_t *out)
{
	NVML_DEVICE(index, device);
	NVML_NEED(out);
	*out = NVML_PSTATE_0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *out)
{
	return state(device, out);
}

nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t *out)
{
	return state(device, out);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int *celsius)
{
	NVML_DEVICE(index, device);
	NVML_NEED(celsius && sensor == NVML_TEMPERATURE_GPU);
	*celsius = 32 + use(index) * 3 / 10;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
	NVML_NEED(temperature);
	unsigned int celsius;
	nvmlReturn_t result = nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius);
	temperature->temperature = result ? 0 : (int)celsius;
	return result;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                               nvmlTemperatureThresholds_t which,
                                               unsigned int *celsius)
{
	NVML_DEVICE(index, device);
	NVML_NEED(celsius);
	if (which > NVML_TEMPERATURE_THRESHOLD_GPU_MAX)
		return NVML_ERROR_NOT_SUPPORTED;
	*celsius = which == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN ? LOCAL_LIMIT + 7 : LOCAL_LIMIT;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	NVML_DEVICE(index, device);
	NVML_NEED(mhz && type < NVML_CLOCK_COUNT);
	*mhz = type == NVML_CLOCK_MEM ? shape()->memory_clock : shape()->clock;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)
{
	NVML_DEVICE(index, device);
	NVML_NEED(mhz && type < NVML_CLOCK_COUNT);
	*mhz = type == NVML_CLOCK_MEM ? shape()->memory_clock
	       : use(index)           ? shape()->clock
	                              : IDLE_CLOCK;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id,
                                unsigned int *mhz)
{
	return id == NVML_CLOCK_ID_CURRENT ? nvmlDeviceGetClockInfo(device, type, mhz)
	                                   : nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                            unsigned int *mhz)
{
	return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                                   unsigned int *mhz)
{
	return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                    unsigned long long *reasons)
{
	NVML_DEVICE(index, device);
	NVML_NEED(reasons);
	*reasons = use(index) ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long *reasons)
{
	return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	NVML_UNIT(unit, device);
	NVML_NEED(mode);
	if (unit < nvml.machine.map->count && nvml.machine.map->mig[unit])
		return NVML_ERROR_NOT_SUPPORTED;
	*mode = NVML_COMPUTEMODE_DEFAULT;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	NVML_DEVICE(index, device);
	NVML_NEED(mode);
	*mode = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

static nvmlReturn_t display(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	NVML_DEVICE(index, device);
	NVML_NEED(mode);
	*mode = NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	return display(device, mode);
}

nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	return display(device, mode);
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode)
{
	NVML_DEVICE(index, device);
	NVML_NEED(mode);
	*mode = NVML_GPU_VIRTUALIZATION_MODE_NONE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                  nvmlEnableState_t *pending)
{
	NVML_DEVICE(index, device);
	NVML_NEED(current && pending);
	*current = *pending = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
	nvmlEnableState_t pending;
	return nvmlDeviceGetEccMode(device, mode, &pending);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, unsigned long long *count)
{
	NVML_DEVICE(index, device);
	NVML_NEED(count && type < NVML_MEMORY_ERROR_TYPE_COUNT &&
	          counter < NVML_ECC_COUNTER_TYPE_COUNT);
	bool uncorrected = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
	*count = uncorrected ? nvml_health(index).errors : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t counter,
                                             nvmlMemoryLocation_t location,
                                             unsigned long long *count)
{
	(void)location;
	return nvmlDeviceGetTotalEccErrors(device, type, counter, count);
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
	return display(device, pending);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected,
                                       unsigned int *uncorrected, unsigned int *pending,
                                       unsigned int *failed)
{
	NVML_DEVICE(index, device);
	NVML_NEED(corrected && uncorrected && pending && failed);
	*corrected = *uncorrected = *pending = *failed = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                 unsigned long long *millijoules)
{
	NVML_DEVICE(index, device);
	NVML_NEED(millijoules);
	machine_lock(&nvml.machine);
	engine_advance(&nvml.machine, index);
	*millijoules = nvml.machine.map->gpus[index].busy_ns / 1000000u * shape()->power;
	machine_unlock(&nvml.machine);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *count)
{
	NVML_DEVICE(index, device);
	NVML_NEED(count);
	*count = 0;
	return NVML_SUCCESS;
}
