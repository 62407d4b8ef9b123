/* The engine of each GPU. See engine.h. */
#include "engine.h"

#include <string.h>

#define LOOK_AGAIN_NS 5000000ull /* how long a kernel waits before it asks who ahead has died */
#define HELD_LOOK_NS 100000ull   /* ... and while the paper stands still */

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

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* When a process has a kernel ready, be it one that it has yet to bring; SIM_NEVER: it has none. */
static uint64_t ready_at(const struct sim_request *r, uint64_t now)
{
	if (r->state == SIM_QUEUED)
		return r->ready_ns;
	bool brings = r->state == SIM_DONE && r->more && now < r->noted_ns + ENGINE_HOLD_NS;
	return brings ? r->end_ns : SIM_NEVER;
}

/* Whether the engine waits for the next kernel of the process that has it. */
static bool is_held(const struct sim_gpu *gpu)
{
	return gpu->running != SIM_NONE && gpu->requests[gpu->running].state == SIM_DONE;
}

/* Counts the time up to `until` for the kernel that runs. Who reads the file without its lock sees
 * from the sums, which change first and last, whether all between belongs together. */
static void write_down(struct sim_map *map, uint32_t index, uint64_t until)
{
	struct sim_gpu *gpu = &map->gpus[index];
	struct sim_part *part = &map->processes[gpu->running].parts[index];
	struct sim_request *r = &gpu->requests[gpu->running];
	uint64_t ns = until - gpu->time_ns;
	history_add(&gpu->history, gpu->time_ns, until);
	history_add(&part->history, gpu->time_ns, until);
	part->busy_ns += ns;
	__atomic_store_n(&gpu->time_ns, until, __ATOMIC_RELEASE);
	if (r->left_ns != SIM_NEVER)
		r->left_ns -= ns;
	__atomic_store_n(&gpu->busy_ns, gpu->busy_ns + ns, __ATOMIC_RELEASE);
}

static void step_down(struct sim_gpu *gpu)
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
	map->processes[gpu->running].parts[index].kernels++;
	r->noted_ns = now;
	if (!r->more || gpu->time_ns >= gpu->slice_ns)
		step_down(gpu);
}

/* When the first process, other than `except`, has a kernel ready; SIM_NEVER: none has. */
static uint64_t first_ready(const struct sim_map *map, const struct sim_gpu *gpu, uint32_t except,
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

/* Gives the engine to the next process in order that has a kernel ready when it is free. */
static bool start_next(const struct sim_map *map, struct sim_gpu *gpu, uint64_t now)
{
	uint64_t first = first_ready(map, gpu, SIM_NONE, now), start = later(first, gpu->time_ns);
	if (start > now)
		return false;
	uint32_t next = gpu->last;
	do
		next = next + 1 < map->high ? next + 1 : 0;
	while (ready_at(&gpu->requests[next], now) > start);
	gpu->running = next;
	gpu->time_ns = start;
	gpu->slice_ns = start + ENGINE_SLICE_NS;
	return true;
}

/* When the kernel that runs ends or has to let another one run; SIM_NEVER: nobody knows. */
static uint64_t next_change(const struct sim_map *map, const struct sim_gpu *gpu, uint64_t now)
{
	uint64_t left = gpu->requests[gpu->running].left_ns;
	uint64_t other = first_ready(map, gpu, gpu->running, now);
	uint64_t end = left == SIM_NEVER ? SIM_NEVER : gpu->time_ns + left;
	uint64_t cut = later(later(other, gpu->slice_ns), gpu->time_ns);
	return end < cut ? end : cut;
}

static void advance(struct machine *m, uint32_t index, uint64_t now)
{
	struct sim_gpu *gpu = &m->map->gpus[index];
	for (;;) {
		if (is_held(gpu)) {
			if (ready_at(&gpu->requests[gpu->running], now) != SIM_NEVER)
				return;
			step_down(gpu);
		}
		if (gpu->running == SIM_NONE && !start_next(m->map, gpu, now))
			return;
		if (is_held(gpu))
			return;
		uint64_t until = next_change(m->map, gpu, now);
		if (until > now)
			return;
		write_down(m->map, index, until);
		if (gpu->requests[gpu->running].left_ns)
			step_down(gpu);
		else
			end_kernel(m->map, index, now);
	}
}

/* The same, and the kernel of `slot`, if it runs, is counted up to `now`. */
static void count(struct machine *m, uint32_t index, uint32_t slot, uint64_t now)
{
	const struct sim_gpu *gpu = &m->map->gpus[index];
	advance(m, index, now);
	if (gpu->running == slot && !is_held(gpu) && gpu->time_ns < now)
		write_down(m->map, index, now);
}

void engine_advance(struct machine *m, uint32_t index)
{
	uint64_t now = machine_now();
	advance(m, index, now);
	if (m->map->gpus[index].running != SIM_NONE)
		count(m, index, m->map->gpus[index].running, now);
}

void engine_submit(struct machine *m, uint32_t index, uint64_t ready_ns, uint64_t duration_ns,
                   bool more)
{
	machine_lock(m);
	struct sim_gpu *gpu = &m->map->gpus[index];
	struct sim_request *mine = &gpu->requests[m->slot];
	uint64_t now = machine_now();
	if (ready_ns > now)
		ready_ns = now;
	/* A clock that started anew (the machine did) must not find an end in its future. */
	if (gpu->running == SIM_NONE && gpu->time_ns > now)
		gpu->time_ns = now;
	if (mine->state == SIM_QUEUED)
		count(m, index, m->slot, ready_ns);
	else if (gpu->running == m->slot && ready_ns > gpu->time_ns)
		step_down(gpu); /* the next one was not ready when the last one ended */
	*mine = (struct sim_request){.state = SIM_QUEUED,
	                             .more = more,
	                             .ready_ns = ready_ns,
	                             .left_ns = duration_ns};
	advance(m, index, now);
	machine_unlock(m);
}

/* A time before which this process's kernel does not end; not far off while others wait, because
 * somebody has to see who dies and to keep the paper up to date. */
static uint64_t earliest_end(struct machine *m, const struct sim_gpu *gpu, uint64_t now)
{
	const struct sim_request *mine = &gpu->requests[m->slot];
	uint64_t again = now + LOOK_AGAIN_NS, start = gpu->time_ns;
	if (gpu->running == m->slot && first_ready(m->map, gpu, m->slot, now) == SIM_NEVER)
		return mine->left_ns == SIM_NEVER ? SIM_NEVER : start + mine->left_ns;
	if (gpu->running != SIM_NONE && now > mine->ready_ns + LOOK_AGAIN_NS &&
	    !machine_pid(m, gpu->running))
		machine_reap(m);
	if (gpu->running == SIM_NONE || is_held(gpu))
		return now + HELD_LOOK_NS;
	if (gpu->running != m->slot)
		start = next_change(m->map, gpu, now);
	return start < again && mine->left_ns < again - start ? start + mine->left_ns : again;
}

bool engine_poll(struct machine *m, uint32_t index, uint64_t *when)
{
	machine_lock(m);
	uint64_t now = machine_now();
	advance(m, index, now);
	struct sim_gpu *gpu = &m->map->gpus[index];
	const struct sim_request *mine = &gpu->requests[m->slot];
	/* One that is no longer there was in the file when a process died half-way through a change. */
	bool done = mine->state != SIM_QUEUED;
	if (done)
		*when = mine->state == SIM_DONE ? mine->end_ns : now;
	else
		*when = earliest_end(m, gpu, now);
	machine_unlock(m);
	return done;
}

void engine_release(struct machine *m, uint32_t index)
{
	machine_lock(m);
	uint64_t now = machine_now();
	struct sim_request *mine = &m->map->gpus[index].requests[m->slot];
	count(m, index, m->slot, now);
	if (mine->state == SIM_QUEUED)
		mine->left_ns = 0;
	advance(m, index, now);
	machine_unlock(m);
}

static void leave(struct machine *m, uint32_t index, uint32_t slot)
{
	struct sim_gpu *gpu = &m->map->gpus[index];
	count(m, index, slot, machine_now());
	if (gpu->running == slot)
		step_down(gpu);
	gpu->requests[slot].state = SIM_IDLE;
}

void engine_leave(struct machine *m, uint32_t index)
{
	machine_lock(m);
	leave(m, index, m->slot);
	machine_unlock(m);
}

void engine_forget(struct machine *m, uint32_t slot)
{
	for (uint32_t g = 0; g < m->map->count; g++)
		leave(m, g, slot);
}

void engine_mend(struct machine *m)
{
	for (uint32_t g = 0; g < m->map->count; g++) {
		struct sim_gpu *gpu = &m->map->gpus[g];
		if (gpu->running != SIM_NONE && gpu->requests[gpu->running].state == SIM_IDLE)
			gpu->running = SIM_NONE;
	}
}
