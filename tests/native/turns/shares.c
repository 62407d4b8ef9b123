#include "shares.h"

#include <string.h>

struct simulated_gpu gpu;
struct share shares[2 * GPU_PROGRAMS];
uint64_t before[GPU_PROGRAMS], used_before[GPU_PROGRAMS];

const struct program busy = {.quantum_ns = 500 * US, .depth = 40};
const struct program syncs = {.quantum_ns = 300 * US, .depth = 8, .burst = 8, .think_ns = 60 * US};
const struct program small = {.quantum_ns = 40 * US, .depth = 20, .burst = 20, .think_ns = 40 * US};
const struct program long_quanta = {.quantum_ns = 8 * MS, .depth = 4};
const struct program request = {.quantum_ns = 500 * US,
                                .depth = 1,
                                .burst = 1,
                                .think_ns = 9500 * US};

void begin_test(unsigned seed)
{
	memset(shares, 0, sizeof(shares));
	simulated_gpu_init(&gpu, seed);
}

struct share *add_share_as(struct turns_settings settings, const struct program *how)
{
	struct share *share = &shares[gpu.count];
	share->settings = settings;
	share->program = *how;
	turns_add(&gpu.turns, &share->contender, &share->settings, NULL, gpu.now);
	simulated_gpu_add(&gpu, &share->program, &share->contender);
	return share;
}

struct share *add_share(uint32_t percent, const struct program *how)
{
	return add_share_as((struct turns_settings){.percent = percent}, how);
}

void run_noted(uint64_t ns)
{
	simulated_gpu_note(&gpu, before);
	for (unsigned i = 0; i < gpu.count; i++)
		used_before[i] = shares[i].contender.figures.used_ns;
	simulated_gpu_run(&gpu, ns);
}

double got(unsigned i)
{
	return 100 * simulated_gpu_part(&gpu, &shares[i].program, before);
}

double busy_part(unsigned i, uint64_t ns)
{
	return 100 * (double)(shares[i].program.gpu_ns - before[i]) / (double)ns;
}

double said(unsigned i)
{
	uint64_t all = 0;
	for (unsigned k = 0; k < gpu.count; k++)
		all += shares[k].contender.figures.used_ns - used_before[k];
	return 100 * (double)(shares[i].contender.figures.used_ns - used_before[i]) / (double)all;
}

uint64_t all_fallbacks(void)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < gpu.count; i++)
		sum += shares[i].contender.figures.fallbacks;
	return sum;
}
