/* The engine of each GPU. See engine.h. */
#include "engine.h"

#include <string.h>
#include <time.h>

#define LOOK_AGAIN_NS 20000000ull /* how long a kernel waits before it asks who ahead has died */

uint64_t engine_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

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

uint64_t engine_busy(const struct sim_history *h, uint64_t now, uint64_t window)
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

static void end_running(struct sim_map *map, struct sim_gpu *gpu, uint32_t index)
{
	uint32_t slot = gpu->running;
	struct sim_part *part = &map->processes[slot].parts[index];
	gpu->running = SIM_NONE;
	gpu->requests[slot].end_ns = gpu->end_ns;
	gpu->requests[slot].state = SIM_DONE;
	gpu->busy_ns += gpu->end_ns - gpu->start_ns;
	part->busy_ns += gpu->end_ns - gpu->start_ns;
	part->kernels++;
	history_add(&gpu->history, gpu->start_ns, gpu->end_ns);
	history_add(&part->history, gpu->start_ns, gpu->end_ns);
}

static bool start_next(struct sim_map *map, struct sim_gpu *gpu)
{
	uint32_t next = SIM_NONE;
	for (uint32_t i = 0; i < map->high; i++) {
		const struct sim_request *r = &gpu->requests[i];
		if (r->state == SIM_QUEUED && (next == SIM_NONE || r->ticket < gpu->requests[next].ticket))
			next = i;
	}
	if (next == SIM_NONE)
		return false;
	struct sim_request *r = &gpu->requests[next];
	gpu->start_ns = r->ready_ns > gpu->end_ns ? r->ready_ns : gpu->end_ns;
	gpu->end_ns = gpu->start_ns + r->duration_ns;
	r->state = SIM_RUNNING;
	gpu->running = next;
	return true;
}

void engine_advance(struct machine *m, uint32_t index)
{
	struct sim_gpu *gpu = &m->map->gpus[index];
	uint64_t now = engine_now();
	do {
		if (gpu->running != SIM_NONE) {
			if (gpu->end_ns > now)
				return;
			end_running(m->map, gpu, index);
		}
	} while (start_next(m->map, gpu));
}

void engine_submit(struct machine *m, uint32_t index, uint64_t ready_ns, uint64_t duration_ns)
{
	machine_lock(m);
	struct sim_gpu *gpu = &m->map->gpus[index];
	uint64_t now = engine_now();
	/* A clock that started anew (the machine did) must not find an end in its future. */
	if (gpu->running == SIM_NONE && gpu->end_ns > now)
		gpu->end_ns = now;
	gpu->requests[m->slot] = (struct sim_request){.state = SIM_QUEUED,
	                                              .ticket = gpu->tickets++,
	                                              .ready_ns = ready_ns,
	                                              .duration_ns = duration_ns};
	engine_advance(m, index);
	machine_unlock(m);
}

/* When this process's queued kernel will end if nothing changes. */
static uint64_t expected_end(const struct sim_map *map, const struct sim_gpu *gpu, uint32_t slot)
{
	uint64_t end = gpu->end_ns + gpu->requests[slot].duration_ns;
	for (uint32_t i = 0; i < map->high; i++) {
		const struct sim_request *r = &gpu->requests[i];
		if (r->state == SIM_QUEUED && r->ticket < gpu->requests[slot].ticket)
			end += r->duration_ns;
	}
	return end;
}

bool engine_poll(struct machine *m, uint32_t index, uint64_t *when)
{
	machine_lock(m);
	engine_advance(m, index);
	struct sim_gpu *gpu = &m->map->gpus[index];
	struct sim_request *mine = &gpu->requests[m->slot];
	/* One that is no longer there was in the file when a process died half-way through a change. */
	bool done = mine->state == SIM_DONE || mine->state == SIM_IDLE;
	if (done) {
		*when = mine->state == SIM_DONE ? mine->end_ns : engine_now();
		mine->state = SIM_IDLE;
	} else if (mine->state == SIM_RUNNING) {
		*when = gpu->end_ns;
	} else {
		uint64_t end = expected_end(m->map, gpu, m->slot), now = engine_now();
		if (gpu->running != SIM_NONE && now > mine->ready_ns + LOOK_AGAIN_NS &&
		    !machine_pid(m, gpu->running))
			machine_reap(m);
		*when = end < now + LOOK_AGAIN_NS ? end : now + LOOK_AGAIN_NS;
	}
	machine_unlock(m);
	return done;
}

static void leave(struct sim_gpu *gpu, uint32_t slot)
{
	if (gpu->running == slot) {
		uint64_t now = engine_now();
		gpu->running = SIM_NONE;
		gpu->end_ns = gpu->end_ns < now ? gpu->end_ns : now;
	}
	gpu->requests[slot].state = SIM_IDLE;
}

void engine_forget(struct machine *m, uint32_t slot)
{
	for (uint32_t g = 0; g < m->map->count; g++)
		leave(&m->map->gpus[g], slot);
}

void engine_mend(struct machine *m)
{
	for (uint32_t g = 0; g < m->map->count; g++) {
		struct sim_gpu *gpu = &m->map->gpus[g];
		if (gpu->running != SIM_NONE && gpu->requests[gpu->running].state != SIM_RUNNING)
			gpu->running = SIM_NONE;
		for (uint32_t i = 0; i < m->map->high; i++)
			if (gpu->requests[i].state == SIM_RUNNING && i != gpu->running)
				gpu->requests[i].state = SIM_QUEUED;
	}
}
