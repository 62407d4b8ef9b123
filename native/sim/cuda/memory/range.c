/* All address ranges of the driver, in one array sorted by address. See memory.h. */
#include "cuda/core/context_end.h"
#include "cuda/memory/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct sim_range **ranges;
static size_t count, capacity;

/* The index of the first range that ends after `address`. */
static size_t after(uint64_t address)
{
	size_t low = 0, high = count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (ranges[middle]->base + ranges[middle]->size > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static struct sim_range *first_of(const struct sim_context *context)
{
	for (size_t i = 0; i < count; i++)
		if (ranges[i]->context == context)
			return ranges[i];
	return NULL;
}

static void end_context(struct sim_context *context)
{
	for (struct sim_range *range; (range = first_of(context));)
		range_free(range);
}

struct sim_range *range_add(const struct sim_range *range)
{
	struct sim_range *copy = malloc(sizeof(*copy));
	if (count == capacity) {
		size_t more = capacity ? capacity * 2 : 64;
		struct sim_range **grown = realloc(ranges, more * sizeof(*ranges));
		if (!grown || !copy) {
			free(copy);
			return NULL;
		}
		ranges = grown;
		capacity = more;
	}
	if (!copy)
		return NULL;
	context_at_end(CONTEXT_END_RANGES, end_context);
	*copy = *range;
	copy->id = ++sim.next_id;
	size_t at = after(range->base);
	memmove(&ranges[at + 1], &ranges[at], (count - at) * sizeof(*ranges));
	ranges[at] = copy;
	count++;
	return copy;
}

struct sim_range *range_from(uint64_t address)
{
	size_t at = after(address);
	return at < count ? ranges[at] : NULL;
}

struct sim_range *range_find(uint64_t address)
{
	struct sim_range *range = range_from(address);
	return range && range->base <= address ? range : NULL;
}

struct sim_range *range_exact(uint64_t base)
{
	struct sim_range *range = range_from(base);
	return range && range->base == base ? range : NULL;
}

void range_remove(struct sim_range *range)
{
	size_t at = after(range->base);
	memmove(&ranges[at], &ranges[at + 1], (count - at - 1) * sizeof(*ranges));
	count--;
	free(range);
}

void range_free(struct sim_range *range)
{
	struct sim_range gone = *range;
	range_remove(range);
	if (gone.release)
		gone.release(&gone);
}

bool range_covers(uint64_t address, uint64_t size, int access)
{
	if (address + size < address)
		return false;
	for (uint64_t end = address + size; address < end;) {
		const struct sim_range *range = range_find(address);
		if (!range ||
		    (range->memory == SIM_MAPPED && (range->access & (uint32_t)access) != (uint32_t)access))
			return false;
		address = range->base + range->size;
	}
	return true;
}
