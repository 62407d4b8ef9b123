/* Checks limits and usage pages, and reads the state of a grant. */
#include "aliquot/layout.h"

#include <stdbool.h>
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
		return "limits: invalid number of slices";
	if (atomic_load(&limits->life) > ALIQUOT_ENDED)
		return "limits: invalid life";
	if (!memchr(limits->name, 0, sizeof(limits->name)))
		return "limits: a name without a terminating zero";
	for (uint32_t i = 0; i < limits->slice_count; i++) {
		const struct aliquot_slice_limits *slice = &limits->slices[i];
		if (!memchr(slice->pci_bus_id, 0, sizeof(slice->pci_bus_id)))
			return "limits: a PCI bus id without a terminating zero";
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

enum aliquot_grant_state aliquot_limits_grant_state(const struct aliquot_limits *limits)
{
	uint32_t least = limits->slice_count ? ALIQUOT_GRANT_PARKED : ALIQUOT_GRANT_ACTIVE;
	for (uint32_t i = 0; i < limits->slice_count && i < ALIQUOT_MAX_GPUS; i++) {
		uint32_t state = atomic_load(&limits->slices[i].grant_state);
		if (state > ALIQUOT_GRANT_PARKED)
			return ALIQUOT_GRANT_ACTIVE;
		least = state < least ? state : least;
	}
	return (enum aliquot_grant_state)least;
}

uint64_t aliquot_limits_spill(const struct aliquot_limits *limits)
{
	bool has_place = limits->slice_count <= ALIQUOT_HOST_SLICE; /* else a GPU's slice is there */
	return has_place ? atomic_load(&limits->slices[ALIQUOT_HOST_SLICE].limit_bytes) : 0;
}
