/* Event sets: report changes of GPU health (machine/health.h) to programs that wait for them. */
#include "nvml/nvml_sim.h"

#include <stdlib.h>
#include <time.h>

#define LOOK_NS 10000000ull

struct set {
	unsigned long long types[SIM_MAX_GPUS];
	uint64_t position; /* in the health file: what the set has reported */
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
	NVML_READY();
	NVML_NEED(out);
	struct set *set = calloc(1, sizeof(*set));
	if (!set)
		return NVML_ERROR_MEMORY;
	set->position = health_end(&nvml.machine);
	*out = (nvmlEventSet_t)set;
	return NVML_SUCCESS;
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
	NVML_DEVICE(index, device);
	NVML_NEED(set);
	nvmlReturn_t result = nvmlDeviceGetSupportedEventTypes(device, &known);
	if (result)
		return result;
	if (types & ~known)
		return NVML_ERROR_NOT_SUPPORTED;
	((struct set *)set)->types[index] |= types;
	return NVML_SUCCESS;
}

static unsigned long long type_of(const struct health_event *event)
{
	switch (event->kind) {
	case HEALTH_XID:
		return nvmlEventTypeXidCriticalError;
	case HEALTH_ECC:
		return nvmlEventTypeDoubleBitEccError;
	default:
		return 0;
	}
}

/* The next event that the set is registered for; false: none yet. */
static bool next_event(struct set *set, nvmlEventData_t *data)
{
	struct health_event event;
	while (health_next(&nvml.machine, &set->position, &event)) {
		unsigned long long type = type_of(&event);
		if (!(set->types[event.gpu] & type))
			continue;
		*data = (nvmlEventData_t){.device = (nvmlDevice_t)&nvml.devices[event.gpu],
		                          .eventType = type,
		                          .eventData = event.kind == HEALTH_XID ? event.number : 0,
		                          .gpuInstanceId = UINT32_MAX,
		                          .computeInstanceId = UINT32_MAX};
		return true;
	}
	return false;
}

static bool has_lost_one(const struct set *set)
{
	for (uint32_t i = 0; i < nvml.machine.shape.count; i++)
		if (set->types[i] && nvml_health(i).lost)
			return true;
	return false;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
                                 unsigned int milliseconds)
{
	NVML_READY();
	NVML_NEED(set && data);
	uint64_t until = machine_now() + milliseconds * 1000000ull;
	while (!next_event((struct set *)set, data)) {
		uint64_t now = machine_now(), left = until > now ? until - now : 0;
		if (!left)
			return has_lost_one((struct set *)set) ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_TIMEOUT;
		struct timespec look = {.tv_nsec = (long)(left < LOOK_NS ? left : LOOK_NS)};
		nanosleep(&look, NULL);
	}
	return NVML_SUCCESS;
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
		case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
			v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
			v->value.uiVal = (unsigned)nvml_health(index).action;
			if (!nvml_health(index).knows_action)
				v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
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
