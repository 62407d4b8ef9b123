#include "aliquot/layout.h"

#include <string.h>

const char *aliquot_limits_check(const struct aliquot_limits *limits, size_t size)
{
	if (size < sizeof(*limits))
		return "limits: shorter than its layout";
	if (limits->magic != ALIQUOT_LIMITS_MAGIC)
		return "limits: not a limits file";
	if (limits->version != ALIQUOT_VERSION || limits->size != sizeof(*limits))
		return "limits: written by another version of Aliquot";
	if (limits->slice_count == 0 || limits->slice_count > ALIQUOT_MAX_GPUS)
		return "limits: a number of slices that cannot be";
	if (atomic_load(&limits->life) > ALIQUOT_ENDED)
		return "limits: a life that cannot be";
	if (!memchr(limits->name, 0, sizeof(limits->name)))
		return "limits: a name without an end";
	for (uint32_t i = 0; i < limits->slice_count; i++) {
		const struct aliquot_slice_limits *slice = &limits->slices[i];
		if (!memchr(slice->pci_bus_id, 0, sizeof(slice->pci_bus_id)))
			return "limits: a PCI bus id without an end";
		if (atomic_load(&slice->limit_bytes) > slice->gpu_bytes)
			return "limits: a slice larger than its GPU";
	}
	return NULL;
}

const char *aliquot_usage_check(const struct aliquot_usage *usage, size_t size)
{
	if (size < sizeof(*usage))
		return "usage: shorter than its layout";
	if (usage->magic != ALIQUOT_USAGE_MAGIC)
		return "usage: not a ledger";
	if (usage->version != ALIQUOT_VERSION || usage->size != sizeof(*usage))
		return "usage: written by another version of Aliquot";
	return NULL;
}

enum aliquot_hold aliquot_limits_hold(const struct aliquot_limits *limits)
{
	uint32_t least = limits->slice_count ? ALIQUOT_HOLD_PARKED : ALIQUOT_HOLD_TAKEN;
	for (uint32_t i = 0; i < limits->slice_count && i < ALIQUOT_MAX_GPUS; i++) {
		uint32_t hold = atomic_load(&limits->slices[i].hold);
		if (hold > ALIQUOT_HOLD_PARKED)
			return ALIQUOT_HOLD_TAKEN;
		least = hold < least ? hold : least;
	}
	return (enum aliquot_hold)least;
}
