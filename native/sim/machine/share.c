#include "share.h"

#include <string.h>

struct sim_share *share_find(struct sim_map *map, uint64_t id)
{
	for (uint32_t i = 0; i < map->shares_high; i++)
		if (map->share_ids[i] == id)
			return &map->shares[i];
	return NULL;
}

static uint32_t index_of(const struct sim_map *map, const struct sim_share *share)
{
	return (uint32_t)(share - map->shares);
}

static struct sim_share *find_free(struct sim_map *map)
{
	struct sim_share *share = share_find(map, 0);
	if (!share && map->shares_high < SIM_SHARES)
		share = &map->shares[map->shares_high++];
	return share;
}

struct sim_share *share_add(struct sim_map *map, uint64_t id, uint32_t slot, uint32_t gpu,
                            uint64_t bytes)
{
	struct sim_share *share = find_free(map);
	if (!share)
		return NULL;
	memset(share->holds, 0, sizeof(share->holds));
	map->share_ids[index_of(map, share)] = id;
	share->bytes = bytes;
	share->gpu = gpu;
	share->owner = slot;
	share->holds[slot] = 1;
	return share;
}

static void count(struct sim_map *map, const struct sim_share *share, uint32_t slot, int sign)
{
	uint64_t change = sign > 0 ? share->bytes : -share->bytes;
	map->processes[slot].usage[share->gpu].bytes += change;
	if (machine_on_gpus(&map->processes[slot]))
		map->gpus[share->gpu].used += change;
}

/* The process holds it no more. */
static void drop(struct sim_map *map, struct sim_share *share, uint32_t slot)
{
	share->holds[slot] = 0;
	if (share->owner != slot)
		return;
	count(map, share, slot, -1);
	share->owner = 0;
	while (share->owner < map->high && !share->holds[share->owner])
		share->owner++;
	if (share->owner < map->high)
		count(map, share, share->owner, 1);
	else
		map->share_ids[index_of(map, share)] = 0;
}

void share_leave(struct sim_map *map, struct sim_share *share, uint32_t slot)
{
	if (share->holds[slot] && --share->holds[slot] == 0)
		drop(map, share, slot);
}

void share_forget(struct sim_map *map, uint32_t slot)
{
	for (uint32_t i = 0; i < map->shares_high; i++)
		if (map->share_ids[i] && map->shares[i].holds[slot])
			drop(map, &map->shares[i], slot);
}
