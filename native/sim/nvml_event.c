/* Event sets. The simulated GPUs have no accidents: a wait lasts as long as it was asked for. */
#include "nvml_sim.h"

#include <stdlib.h>
#include <time.h>

struct set {
	unsigned long long types;
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
	NVML_READY();
	NVML_NEED(out);
	*out = (nvmlEventSet_t)calloc(1, sizeof(struct set));
	return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	NVML_READY();
	NVML_NEED(set);
	free((void *)set);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	NVML_DEVICE(index, device);
	NVML_NEED(types);
	*types = nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError |
	         nvmlEventTypeXidCriticalError;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set)
{
	unsigned long long known;
	NVML_NEED(set);
	nvmlReturn_t result = nvmlDeviceGetSupportedEventTypes(device, &known);
	if (result)
		return result;
	if (types & ~known)
		return NVML_ERROR_NOT_SUPPORTED;
	((struct set *)set)->types |= types;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
                                 unsigned int milliseconds)
{
	NVML_READY();
	NVML_NEED(set && data);
	struct timespec t = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
	nanosleep(&t, NULL);
	return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds)
{
	return nvmlEventSetWait_v2(set, data, milliseconds);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	NVML_DEVICE(index, device);
	NVML_NEED(values && count > 0);
	for (int i = 0; i < count; i++) {
		nvmlFieldValue_t *v = &values[i];
		v->nvmlReturn = NVML_SUCCESS;
		v->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		v->timestamp = 0;
		v->latencyUsec = 0;
		switch (v->fieldId) {
		case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
			v->nvmlReturn = nvmlDeviceGetTotalEnergyConsumption(device, &v->value.ullVal);
			break;
		case NVML_FI_DEV_NVLINK_LINK_COUNT:
			v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
			v->value.uiVal = nvml.machine.shape.link_count;
			break;
		default:
			v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		}
	}
	return NVML_SUCCESS;
}
