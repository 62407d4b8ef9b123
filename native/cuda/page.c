#include "page.h"

#include "aliquot/layout.h"
#include "table.h"

static struct table pages;
static struct aliquot_lock lock; /* finding a page and adding it are one step */

static uint64_t key_of(uint64_t address)
{
	return address / PAGE_BYTES;
}

static bool add_one(struct record *record, void *unused)
{
	(void)unused;
	record->handles++;
	return false;
}

static bool take_one(struct record *record, void *last)
{
	return *(bool *)last = --record->handles == 0;
}

bool page_count_in(uint64_t address)
{
	aliquot_lock(&lock);
	bool known = table_change(&pages, key_of(address), add_one, NULL);
	if (!known) {
		struct record page = {.key = key_of(address), .handles = 1}, replaced;
		table_put(&pages, &page, &replaced);
	}
	aliquot_unlock(&lock);
	return !known;
}

bool page_count_out(uint64_t address)
{
	bool last = false;
	aliquot_lock(&lock);
	table_change(&pages, key_of(address), take_one, &last);
	aliquot_unlock(&lock);
	return last;
}

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
