/* Pages that small allocations share.
 *
 * An allocation of at most 1 MiB comes out of a page of 2 MiB that the driver takes for several (seen
 * on a card: their addresses tell which lie in one). So a page is charged, with the first allocation
 * in it, and given back with the last: what is charged is what the card holds. */
#ifndef ALIQUOT_PAGE_H
#define ALIQUOT_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#define PAGE_BYTES (UINT64_C(2) << 20)
#define PAGE_LARGEST (UINT64_C(1) << 20) /* the largest allocation that shares one */

/* Count the allocation at `address` in; true: it is the first in its page. */
bool page_count_in(uint64_t address);
/* Count it out; true: it was the last. */
bool page_count_out(uint64_t address);

/* The same for what has no address, small arrays: they fill pages one after the other (seen on a card).
 * True: with these bytes a page more is needed; without them, a page less. */
bool page_fill(uint32_t slice, uint64_t bytes);
bool page_empty(uint32_t slice, uint64_t bytes);

#endif
