/* aliquot_limits_check and aliquot_usage_check on arbitrary bytes: they read nothing past the size
 * they are told, and what they accept is within the bounds that all readers rely on.
 *
 * A page is large and most of it is zeroes: the input is tried as a whole page, and once more as
 * the beginning of a page of the right size.
 */
#include "aliquot/layout.h"

#include <stdlib.h>
#include <string.h>

/* Parked only if all slices are parked; active if one is active or unknown. */
static int has_right_state(const struct aliquot_limits *limits)
{
	enum aliquot_grant_state state = aliquot_limits_grant_state(limits);
	int parked = 1, active = 0;
	for (uint32_t i = 0; i < limits->slice_count; i++) {
		uint32_t word = atomic_load(&limits->slices[i].grant_state);
		parked &= word == ALIQUOT_GRANT_PARKED;
		active |= word == ALIQUOT_GRANT_ACTIVE || word > ALIQUOT_GRANT_PARKED;
	}
	return (state == ALIQUOT_GRANT_PARKED) == parked && (state == ALIQUOT_GRANT_ACTIVE) == active;
}

static void check_accepted(const struct aliquot_limits *limits)
{
	int sound = limits->slice_count >= 1 && limits->slice_count <= ALIQUOT_MAX_GPUS &&
	            memchr(limits->name, 0, sizeof(limits->name));
	for (uint32_t i = 0; sound && i < limits->slice_count; i++) {
		const struct aliquot_slice_limits *slice = &limits->slices[i];
		sound = memchr(slice->pci_bus_id, 0, sizeof(slice->pci_bus_id)) &&
		        atomic_load(&slice->limit_bytes) <= slice->gpu_bytes;
	}
	if (!sound || !has_right_state(limits))
		abort();
}

static void try(const void *page, size_t size)
{
	if (!aliquot_limits_check(page, size)) {
		if (size < sizeof(struct aliquot_limits))
			abort();
		check_accepted(page);
	}
	if (!aliquot_usage_check(page, size) && size < sizeof(struct aliquot_usage))
		abort();
}

static void try_as_beginning(const uint8_t *data, size_t size, size_t page_size)
{
	uint8_t *page = calloc(1, page_size);
	if (!page)
		return;
	memcpy(page, data, size < page_size ? size : page_size);
	try(page, page_size);
	free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *exact = malloc(size ? size : 1); /* aligned, and not a byte longer */
	if (!exact)
		return 0;
	memcpy(exact, data, size);
	try(exact, size);
	free(exact);
	try_as_beginning(data, size, sizeof(struct aliquot_limits));
	if (size >= 8 && !memcmp(data, &(uint64_t){ALIQUOT_USAGE_MAGIC}, 8))
		try_as_beginning(data, size, sizeof(struct aliquot_usage));
	return 0;
}
