#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct sim_instance *mig_instance(const struct sim_map *map, uint32_t unit)
{
	if (unit < map->count || !map->computes[unit - map->count].used)
		return NULL;
	return &map->instances[map->computes[unit - map->count].instance];
}

bool mig_is_gone(const struct sim_map *map, uint32_t unit)
{
	return unit >= map->count && !map->computes[unit - map->count].used;
}

void mig_choose(struct sim_map *map, const struct sim_shape *shape, const char *choice)
{
	if (!shape->profile_count || !choice)
		return;
	for (uint32_t gpu = 0; gpu < shape->count; gpu++)
		map->mig[gpu] = !strcmp(choice, "all");
	for (char *end; *choice; choice = *end ? end + 1 : end) {
		unsigned long gpu = strtoul(choice, &end, 10);
		if (end == choice)
			return;
		if (gpu < shape->count)
			map->mig[gpu] = 1;
	}
}

uint32_t mig_profile(const struct sim_shape *shape, uint32_t id)
{
	for (uint32_t i = 0; i < shape->profile_count; i++)
		if (shape->profiles[i].id == id)
			return i;
	return SIM_NONE;
}

/* Bit N: memory slice N of the GPU is in an instance. */
static uint32_t taken(const struct sim_map *map, const struct sim_shape *shape, uint32_t gpu)
{
	uint32_t slices = 0;
	for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++) {
		const struct sim_instance *one = &map->instances[i];
		if (one->used && one->gpu == gpu)
			slices |= ((1u << shape->profiles[one->profile].size) - 1) << one->start;
	}
	return slices;
}

static uint32_t count_of(const struct sim_map *map, uint32_t gpu, uint32_t profile)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++)
		count += map->instances[i].used && map->instances[i].gpu == gpu &&
		         map->instances[i].profile == profile;
	return count;
}

bool mig_fits(const struct sim_map *map, const struct sim_shape *shape, uint32_t gpu,
              uint32_t profile, uint32_t start)
{
	const struct sim_profile *p = &shape->profiles[profile];
	uint32_t slices = ((1u << p->size) - 1) << start;
	return start < SIM_MEMORY_SLICES && p->starts & 1u << start &&
	       !(taken(map, shape, gpu) & slices) && count_of(map, gpu, profile) < p->most;
}

uint32_t mig_left(const struct sim_map *map, const struct sim_shape *shape, uint32_t gpu,
                  uint32_t profile)
{
	const struct sim_profile *p = &shape->profiles[profile];
	uint32_t there = count_of(map, gpu, profile), left = 0;
	for (uint32_t start = 0; start < SIM_MEMORY_SLICES; start++)
		left += mig_fits(map, shape, gpu, profile, start);
	return there + left > p->most ? p->most - there : left;
}

uint32_t mig_make(struct sim_map *map, const struct sim_shape *shape, uint32_t gpu,
                  uint32_t profile, uint32_t start)
{
	/* The first id of the instances with so many memory slices. */
	static const uint32_t first_ids[SIM_MEMORY_SLICES + 1] = {[1] = 7, [2] = 3, [4] = 1, [8] = 0};
	uint32_t size = shape->profiles[profile].size, index = 0;
	while (index < SIM_MAX_INSTANCES && map->instances[index].used)
		index++;
	if (index == SIM_MAX_INSTANCES || !mig_fits(map, shape, gpu, profile, start))
		return SIM_NONE;
	struct sim_instance *made = &map->instances[index];
	made->gpu = gpu;
	made->profile = profile;
	made->start = start;
	made->id = first_ids[size] + start / size;
	__atomic_store_n(&made->used, 1, __ATOMIC_SEQ_CST);
	return index;
}

bool mig_is_divided(const struct sim_map *map, uint32_t instance)
{
	for (uint32_t i = 0; i < map->computes_high; i++)
		if (map->computes[i].used && map->computes[i].instance == instance)
			return true;
	return false;
}

bool mig_compute_fits(const struct sim_map *map, const struct sim_shape *shape, uint32_t instance,
                      uint32_t start, uint32_t slices)
{
	if (start + slices > shape->profiles[map->instances[instance].profile].slices)
		return false;
	for (uint32_t i = 0; i < map->computes_high; i++) {
		const struct sim_compute *one = &map->computes[i];
		if (one->used && one->instance == instance && one->start < start + slices &&
		    start < one->start + one->slices)
			return false;
	}
	return true;
}

static uint32_t free_id(const struct sim_map *map, uint32_t instance)
{
	uint32_t id = 0;
	for (uint32_t i = 0; i < map->computes_high; i++)
		if (map->computes[i].used && map->computes[i].instance == instance &&
		    map->computes[i].id == id) {
			id++;
			i = UINT32_MAX; /* once more from the first */
		}
	return id;
}

static void make_uuid(const struct sim_map *map, const struct sim_compute *compute,
                      uint8_t uuid[16])
{
	const struct sim_instance *instance = &map->instances[compute->instance];
	const uint64_t what[] = {map->seed,    instance->gpu, instance->profile, instance->start,
	                         instance->id, compute->id,   compute->start,    compute->slices};
	uint64_t words[2] = {0x6a09e667f3bcc908ull, 0xbb67ae8584caa73bull};
	for (size_t i = 0; i < sizeof(what) / sizeof(*what); i++)
		for (int w = 0; w < 2; w++) {
			words[w] = (words[w] ^ (what[i] + 1 + (uint64_t)w)) * 0xbf58476d1ce4e5b9ull;
			words[w] ^= words[w] >> 31;
		}
	memcpy(uuid, words, 16);
	uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x50);
	uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

/* A unit begins with no history of the unit that had its number before. */
static void clear_unit(struct sim_map *map, uint32_t unit)
{
	struct sim_gpu *gpu = &map->gpus[unit];
	memset(gpu, 0, sizeof(*gpu));
	gpu->running = gpu->last = SIM_NONE;
	for (uint32_t i = 0; i < map->high; i++)
		memset(&map->processes[i].usage[unit], 0, sizeof(map->processes[i].usage[unit]));
}

uint32_t mig_make_compute(struct sim_map *map, const struct sim_shape *shape, uint32_t instance,
                          uint32_t start, uint32_t slices)
{
	uint32_t index = 0;
	while (index < SIM_MAX_INSTANCES && map->computes[index].used)
		index++;
	if (index == SIM_MAX_INSTANCES || !mig_compute_fits(map, shape, instance, start, slices))
		return SIM_NONE;
	struct sim_compute *made = &map->computes[index];
	clear_unit(map, map->count + index);
	made->instance = instance;
	made->start = start;
	made->slices = slices;
	made->id = free_id(map, instance);
	make_uuid(map, made, made->uuid);
	if (map->computes_high <= index)
		map->computes_high = index + 1;
	__atomic_store_n(&made->used, 1, __ATOMIC_SEQ_CST);
	return index;
}

void mig_name(const struct machine *m, uint32_t unit, char *out, size_t size)
{
	const struct sim_instance *instance = mig_instance(m->map, unit);
	if (!instance) {
		snprintf(out, size, "%s", m->shape.name);
		return;
	}
	const struct sim_profile *profile = &m->shape.profiles[instance->profile];
	uint32_t slices = m->map->computes[unit - m->map->count].slices;
	if (slices == profile->slices)
		snprintf(out, size, "%s MIG %s", m->shape.name, profile->name);
	else
		snprintf(out, size, "%s MIG %uc.%s", m->shape.name, slices, profile->name);
}

bool mig_is_used(const struct sim_map *map, uint32_t unit)
{
	for (uint32_t i = 0; i < map->high; i++) {
		const struct sim_process *p = &map->processes[i];
		if (p->used && (p->usage[unit].contexts || p->usage[unit].bytes || p->usage[unit].managed))
			return true;
	}
	return false;
}
