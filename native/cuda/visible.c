#include "visible.h"

#include "aliquot/uuid.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The slices in the order that indices count. */
static void sort_slices(const struct aliquot_limits *limits, const char *order,
                        uint32_t out[ALIQUOT_MAX_GPUS])
{
	bool by_bus = order && strcmp(order, "PCI_BUS_ID") == 0;
	for (uint32_t i = 0; i < limits->slice_count; i++) {
		uint32_t j = i;
		for (; by_bus && j > 0; j--) {
			if (strcmp(limits->slices[out[j - 1]].pci_bus_id, limits->slices[i].pci_bus_id) <= 0)
				break;
			out[j] = out[j - 1];
		}
		out[j] = i;
	}
}

/* The slice that one item of the list names; slice_count: none. */
static uint32_t slice_by_item(const struct aliquot_limits *limits, const uint32_t *order,
                              const char *item, size_t length)
{
	uint32_t found = limits->slice_count;
	if (length > 4 && (strncmp(item, "GPU-", 4) == 0 || strncmp(item, "MIG-", 4) == 0)) {
		for (uint32_t i = 0; i < limits->slice_count; i++) {
			char text[ALIQUOT_UUID_TEXT_SIZE];
			aliquot_uuid_write(limits->slices[i].uuid, limits->slices[i].instance, text);
			if (length < ALIQUOT_UUID_TEXT_SIZE && strncmp(text, item, length) == 0) {
				if (found != limits->slice_count)
					return limits->slice_count; /* the beginning of two */
				found = i;
			}
		}
		return found;
	}
	char *end;
	long index = strtol(item, &end, 0);
	if (end == item || index < 0 || index >= (long)limits->slice_count)
		return limits->slice_count;
	return order[index];
}

void visible_devices(const struct aliquot_limits *limits, const char *wanted, const char *order,
                     char out[VISIBLE_SIZE])
{
	uint32_t sorted[ALIQUOT_MAX_GPUS];
	char *at = out;
	unsigned count = 0;
	sort_slices(limits, order, sorted);
	out[0] = 0;
	while (count < limits->slice_count + 1 && count < ALIQUOT_MAX_GPUS) {
		uint32_t slice;
		if (!wanted) {
			if (count == limits->slice_count)
				break;
			slice = sorted[count];
		} else {
			size_t length = strcspn(wanted, ",");
			slice = slice_by_item(limits, sorted, wanted, length);
			wanted += length + (wanted[length] == ',');
		}
		if (slice >= limits->slice_count)
			break; /* like the driver: whatever follows an unknown GPU is not seen */
		if (count++)
			*at++ = ',';
		aliquot_uuid_write(limits->slices[slice].uuid, limits->slices[slice].instance, at);
		at += strlen(at);
	}
}
