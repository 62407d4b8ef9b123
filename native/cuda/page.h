/* Pages that small allocations share, and when such a page is charged.
 *
 * The driver puts several allocations of at most 1 MiB into one page of 2 MiB (seen on a GPU: their
 * addresses tell which share a page). So a page is charged with the first allocation in it, and
 * given back with the last: the charge is what the GPU's memory really holds. */
#ifndef ALIQUOT_PAGE_H
#define ALIQUOT_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#define PAGE_BYTES (UINT64_C(2) << 20)
#define PAGE_LARGEST (UINT64_C(1) << 20) /* the largest allocation that shares a page */

/* Count the allocation at `address` into its page; true: it is the first there. */
bool page_count_in(uint64_t address);
/* Count it out; true: it was the last, and `mark` is the page's (exported.h). */
bool page_count_out(uint64_t address, uint64_t *mark);
/* A descriptor of the page was made, which holds all of it. */
void page_exported(uint64_t address, int descriptor);

/* The same for small arrays, which have no address: they fill one page after the other (seen on a
 * GPU). page_fill: true if these bytes need one more page. page_empty: true if without them one
 * page less is needed. */
bool page_fill(uint32_t slice, uint64_t bytes);
bool page_empty(uint32_t slice, uint64_t bytes);

#endif
