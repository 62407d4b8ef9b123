#include "page.h"

#include "aliquot/layout.h"
#include "exported.h"
#include "map.h"

struct shared_page {
	uint64_t key;
	uint64_t allocations;
	uint64_t mark;
};

MAP_OF(page_map, struct shared_page)

static struct aliquot_lock lock; /* over all below */
static struct page_map pages;

static uint64_t key_of(uint64_t address)
{
	return address / PAGE_BYTES;
}

bool page_count_in(uint64_t address)
{
	aliquot_lock(&lock);
	struct shared_page *page = page_map_find(&pages, key_of(address));
	bool is_first = !page;
	if (page) {
		page->allocations++;
	} else {
		struct shared_page added = {.key = key_of(address), .allocations = 1}, replaced;
		page_map_put(&pages, &added, &replaced);
	}
	aliquot_unlock(&lock);
	return is_first;
}

bool page_count_out(uint64_t address, uint64_t *mark)
{
	*mark = EXPORTED_NOT;
	aliquot_lock(&lock);
	struct shared_page *page = page_map_find(&pages, key_of(address));
	bool is_last = page && --page->allocations == 0;
	if (is_last) {
		*mark = page->mark;
		page_map_remove(&pages, page);
	}
	aliquot_unlock(&lock);
	return is_last;
}

void page_exported(uint64_t address, int descriptor)
{
	aliquot_lock(&lock);
	struct shared_page *page = page_map_find(&pages, key_of(address));
	if (page)
		page->mark = exported_descriptor(page->mark, descriptor);
	aliquot_unlock(&lock);
}

/* By slice: the bytes of small arrays, and the pages charged for them. */
static struct {
	uint64_t bytes, pages;
} filled[ALIQUOT_MAX_GPUS];

static uint64_t pages_for(uint64_t bytes)
{
	return (bytes + PAGE_BYTES - 1) / PAGE_BYTES;
}

bool page_fill(uint32_t slice, uint64_t bytes)
{
	aliquot_lock(&lock);
	filled[slice].bytes += bytes;
	bool more = pages_for(filled[slice].bytes) > filled[slice].pages;
	filled[slice].pages += more;
	aliquot_unlock(&lock);
	return more;
}

bool page_empty(uint32_t slice, uint64_t bytes)
{
	aliquot_lock(&lock);
	filled[slice].bytes -= bytes < filled[slice].bytes ? bytes : filled[slice].bytes;
	bool less = pages_for(filled[slice].bytes) < filled[slice].pages;
	filled[slice].pages -= less;
	aliquot_unlock(&lock);
	return less;
}
