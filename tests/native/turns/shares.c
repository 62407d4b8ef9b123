#include "shares.h"

#include <string.h>

struct card card;
struct share shares[2 * CARD_PROGRAMS];
uint64_t before[CARD_PROGRAMS], used_before[CARD_PROGRAMS];

const struct program busy = {.quantum_ns = 500 * US, .depth = 40};
const struct program syncs = {.quantum_ns = 300 * US, .depth = 8, .burst = 8, .think_ns = 60 * US};
const struct program small = {.quantum_ns = 40 * US, .depth = 20, .burst = 20, .think_ns = 40 * US};
const struct program long_quanta = {.quantum_ns = 8 * MS, .depth = 4};
const struct program request = {.quantum_ns = 500 * US,
                                .depth = 1,
                                .burst = 1,
                                .think_ns = 9500 * US};

void begin(unsigned seed)
{
	memset(shares, 0, sizeof(shares));
	card_init(&card, seed);
}

struct share *add_as(struct turns_settings settings, const struct program *how)
{
	struct share *share = &shares[card.count];
	share->settings = settings;
	share->program = *how;
	turns_add(&card.turns, &share->contender, &share->settings, NULL, card.now);
	card_add(&card, &share->program, &share->contender);
	return share;
}

struct share *add(uint32_t percent, const struct program *how)
{
	return add_as((struct turns_settings){.percent = percent}, how);
}

void run_noted(uint64_t ns)
{
	card_note(&card, before);
	for (unsigned i = 0; i < card.count; i++)
		used_before[i] = shares[i].contender.figures.used_ns;
	card_run(&card, ns);
}

double got(unsigned i)
{
	return 100 * card_part(&card, &shares[i].program, before);
}

double busy_part(unsigned i, uint64_t ns)
{
	return 100 * (double)(shares[i].program.gpu_ns - before[i]) / (double)ns;
}

double said(unsigned i)
{
	uint64_t all = 0;
	for (unsigned k = 0; k < card.count; k++)
		all += shares[k].contender.figures.used_ns - used_before[k];
	return 100 * (double)(shares[i].contender.figures.used_ns - used_before[i]) / (double)all;
}

uint64_t all_fallbacks(void)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < card.count; i++)
		sum += shares[i].contender.figures.fallbacks;
	return sum;
}
