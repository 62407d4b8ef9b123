/* How one process uses each GPU's engine. See engine.h. */
#include "engine.h"

#include "schedule.h"

/* How long a kernel waits before it checks whether the running process died. */
#define LOOK_AGAIN_NS 5000000ull
/* Between two looks while the schedule waits for a process to submit its next kernel. */
#define WAIT_LOOK_NS 100000ull

void engine_advance(struct machine *m, uint32_t index)
{
	uint64_t now = machine_now();
	schedule_advance(m->map, index, now);
	if (m->map->gpus[index].running != SIM_NONE)
		schedule_count(m->map, index, m->map->gpus[index].running, now);
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
	/* After a reboot the clock starts anew: the schedule must not be ahead of it. */
	if (gpu->running == SIM_NONE && gpu->time_ns > now)
		gpu->time_ns = now;
	if (mine->state == SIM_QUEUED)
		schedule_count(m->map, index, m->slot, ready_ns);
	else if (gpu->running == m->slot && ready_ns > gpu->time_ns)
		schedule_step_down(gpu); /* this kernel was not ready when the last one ended */
	*mine = (struct sim_request){.state = SIM_QUEUED,
	                             .more = more,
	                             .ready_ns = ready_ns,
	                             .left_ns = duration_ns};
	schedule_advance(m->map, index, now);
	machine_unlock(m);
}

/* A time before which this process's kernel does not end. It is soon while other processes wait:
 * somebody has to notice processes that die, and to advance the schedule. */
static uint64_t earliest_end(struct machine *m, const struct sim_gpu *gpu, uint64_t now)
{
	const struct sim_request *mine = &gpu->requests[m->slot];
	uint64_t again = now + LOOK_AGAIN_NS, start = gpu->time_ns;
	if (gpu->running == m->slot && schedule_first_ready(m->map, gpu, m->slot, now) == SIM_NEVER)
		return mine->left_ns == SIM_NEVER ? SIM_NEVER : start + mine->left_ns;
	if (gpu->running != SIM_NONE && now > mine->ready_ns + LOOK_AGAIN_NS &&
	    !machine_pid(m, gpu->running))
		machine_reap(m);
	if (gpu->running == SIM_NONE || schedule_is_waiting(gpu))
		return now + WAIT_LOOK_NS;
	if (gpu->running != m->slot)
		start = schedule_next_change(m->map, gpu, now);
	return start < again && mine->left_ns < again - start ? start + mine->left_ns : again;
}

bool engine_poll(struct machine *m, uint32_t index, uint64_t *when)
{
	machine_lock(m);
	uint64_t now = machine_now();
	schedule_advance(m->map, index, now);
	struct sim_gpu *gpu = &m->map->gpus[index];
	const struct sim_request *mine = &gpu->requests[m->slot];
	/* A kernel that is missing was lost when a process died in the middle of a change. */
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
	schedule_count(m->map, index, m->slot, now);
	if (mine->state == SIM_QUEUED)
		mine->left_ns = 0;
	schedule_advance(m->map, index, now);
	machine_unlock(m);
}

void engine_leave(struct machine *m, uint32_t index)
{
	machine_lock(m);
	schedule_leave(m->map, index, m->slot, machine_now());
	machine_unlock(m);
}
