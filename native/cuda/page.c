#include "page.h"

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
