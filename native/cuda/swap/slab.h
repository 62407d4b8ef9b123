/* A slab: one piece that small allocations share, in steps of 512 bytes as the driver's own. No locks, no
 * driver calls. */
#ifndef ALIQUOT_SLAB_H
#define ALIQUOT_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#define SLAB_BYTES (UINT64_C(2) << 20)
#define SLAB_STEP 512u
#define SLAB_PLACES ((uint32_t)(SLAB_BYTES / SLAB_STEP))
#define SLAB_NOWHERE SLAB_PLACES

/* All zeroes: empty. */
struct slab {
	uint64_t taken[SLAB_PLACES / 64];  /* one bit for each place */
	uint64_t starts[SLAB_PLACES / 64]; /* an allocation starts here */
	uint32_t used;                     /* places */
	struct slab_allocation {
		uint64_t bytes;  /* as asked for */
		uint64_t shadow; /* swappable.h */
	} at[SLAB_PLACES];   /* by the place where it starts */
};

/* Find places for an allocation and take them. Returns where it starts, or SLAB_NOWHERE. Precondition:
 * 0 < bytes <= SLAB_BYTES. */
uint32_t slab_take(struct slab *slab, uint64_t bytes, uint64_t shadow);

/* Where the allocation starts that has this byte of the slab, or SLAB_NOWHERE. */
uint32_t slab_find(const struct slab *slab, uint64_t byte);

/* Free the allocation that starts there. */
void slab_give(struct slab *slab, uint32_t start);

#endif
