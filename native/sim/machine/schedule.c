/* The schedule of each GPU's engine. See schedule.h. */
#include "schedule.h"

#include <string.h>

static void history_add(struct sim_history *h, uint64_t start, uint64_t end)
{
	uint64_t newest = end / SIM_BUCKET_NS;
	if (newest > h->last) {
		for (uint64_t b = h->last + 1; b <= newest && b <= h->last + SIM_BUCKETS; b++)
			h->busy_ns[b % SIM_BUCKETS] = 0;
		if (newest - h->last > SIM_BUCKETS)
			memset(h->busy_ns, 0, sizeof(h->busy_ns));
		h->last = newest;
	}
	for (uint64_t b = newest; b + SIM_BUCKETS > newest && start < end; b--) {
		uint64_t from = b * SIM_BUCKET_NS > start ? b * SIM_BUCKET_NS : start;
		if (end > from)
			h->busy_ns[b % SIM_BUCKETS] += (uint32_t)(end - from);
		end = from;
		if (!b)
			break;
	}
}

uint64_t schedule_busy(const struct sim_history *h, uint64_t now, uint64_t window)
{
	uint64_t busy = 0, newest = now / SIM_BUCKET_NS, count = window / SIM_BUCKET_NS;
	for (uint64_t b = newest; b + count >= newest && b + SIM_BUCKETS > h->last; b--) {
		if (b <= h->last)
			busy += h->busy_ns[b % SIM_BUCKETS];
		if (!b)
			break;
	}
	return busy < window ? busy : window;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* When a process has a kernel ready, including one that it announced as `more`; SIM_NEVER: it has
 * none. */
static uint64_t ready_at(const struct sim_request *r, uint64_t now)
{
	if (r->state == SIM_QUEUED)
		return r->ready_ns;
	bool brings = r->state == SIM_DONE && r->more && now < r->noted_ns + SCHEDULE_WAIT_NS;
	return brings ? r->end_ns : SIM_NEVER;
}

bool schedule_is_waiting(const struct sim_gpu *gpu)
{
	return gpu->running != SIM_NONE && gpu->requests[gpu->running].state == SIM_DONE;
}

/* Adds the time up to `until` to the running kernel. A reader without the file's lock compares the GPU's
 * sum, which changes last, with those of the processes, which change first: if they agree, what it read
 * is consistent. */
static void record_time(struct sim_map *map, uint32_t index, uint64_t until)
{
	struct sim_gpu *gpu = &map->gpus[index];
	struct sim_usage *usage = &map->processes[gpu->running].usage[index];
	struct sim_request *r = &gpu->requests[gpu->running];
	uint64_t ns = until - gpu->time_ns;
	history_add(&gpu->history, gpu->time_ns, until);
	history_add(&usage->history, gpu->time_ns, until);
	usage->busy_ns += ns;
	__atomic_store_n(&gpu->time_ns, until, __ATOMIC_RELEASE);
	if (r->left_ns != SIM_NEVER)
		r->left_ns -= ns;
	__atomic_store_n(&gpu->busy_ns, gpu->busy_ns + ns, __ATOMIC_RELEASE);
}

void schedule_step_down(struct sim_gpu *gpu)
{
	gpu->last = gpu->running;
	gpu->running = SIM_NONE;
}

static void end_kernel(struct sim_map *map, uint32_t index, uint64_t now)
{
	struct sim_gpu *gpu = &map->gpus[index];
	struct sim_request *r = &gpu->requests[gpu->running];
	r->state = SIM_DONE;
	r->end_ns = gpu->time_ns;
	map->processes[gpu->running].usage[index].kernels++;
	r->noted_ns = now;
	if (!r->more || gpu->time_ns >= gpu->slice_ns)
		schedule_step_down(gpu);
}

uint64_t schedule_first_ready(const struct sim_map *map, const struct sim_gpu *gpu, uint32_t except,
                              uint64_t now)
{
	uint64_t first = SIM_NEVER;
	for (uint32_t i = 0; i < map->high; i++) {
		uint64_t ready = i == except ? SIM_NEVER : ready_at(&gpu->requests[i], now);
		if (ready < first)
			first = ready;
	}
	return first;
}

/* Gives the engine to the next process in order that has a kernel ready. */
static bool start_next(const struct sim_map *map, struct sim_gpu *gpu, uint64_t now)
{
	uint64_t first = schedule_first_ready(map, gpu, SIM_NONE, now),
			 start = later(first, gpu->time_ns);
	if (start > now)
		return false;
	uint32_t next = gpu->last;
	do
		next = next + 1 < map->high ? next + 1 : 0;
	while (ready_at(&gpu->requests[next], now) > start);
	gpu->running = next;
	gpu->time_ns = start;
	gpu->slice_ns = start + SCHEDULE_SLICE_NS;
	return true;
}

uint64_t schedule_next_change(const struct sim_map *map, const struct sim_gpu *gpu, uint64_t now)
{
	uint64_t left = gpu->requests[gpu->running].left_ns;
	uint64_t other = schedule_first_ready(map, gpu, gpu->running, now);
	uint64_t end = left == SIM_NEVER ? SIM_NEVER : gpu->time_ns + left;
	uint64_t cut = later(later(other, gpu->slice_ns), gpu->time_ns);
	return end < cut ? end : cut;
}

void schedule_advance(struct sim_map *map, uint32_t index, uint64_t now)
{
	struct sim_gpu *gpu = &map->gpus[index];
	for (;;) {
		if (schedule_is_waiting(gpu)) {
			if (ready_at(&gpu->requests[gpu->running], now) != SIM_NEVER)
				return;
			schedule_step_down(gpu);
		}
		if (gpu->running == SIM_NONE && !start_next(map, gpu, now))
			return;
		if (schedule_is_waiting(gpu))
			return;
		uint64_t until = schedule_next_change(map, gpu, now);
		if (until > now)
			return;
		record_time(map, index, until);
		if (gpu->requests[gpu->running].left_ns)
			schedule_step_down(gpu);
		else
			end_kernel(map, index, now);
	}
}

void schedule_count(struct sim_map *map, uint32_t index, uint32_t slot, uint64_t now)
{
	const struct sim_gpu *gpu = &map->gpus[index];
	schedule_advance(map, index, now);
	if (gpu->running == slot && !schedule_is_waiting(gpu) && gpu->time_ns < now)
		record_time(map, index, now);
}

void schedule_leave(struct sim_map *map, uint32_t index, uint32_t slot, uint64_t now)
{
	struct sim_gpu *gpu = &map->gpus[index];
	schedule_count(map, index, slot, now);
	if (gpu->running == slot)
		schedule_step_down(gpu);
	gpu->requests[slot].state = SIM_IDLE;
}

void schedule_repair(struct sim_map *map)
{
	for (uint32_t g = 0; g < machine_units(map); g++) {
		struct sim_gpu *gpu = &map->gpus[g];
		if (gpu->running != SIM_NONE && gpu->requests[gpu->running].state == SIM_IDLE)
			gpu->running = SIM_NONE;
	}
}
