/* The engine alone, for test_engine.py: processes are slots, and the test sets the clock. */
#include "schedule.c"

#include "engine.c"

#define PROCESSES 8u

static struct sim_map map;
static struct machine machines[PROCESSES];
static uint64_t now;

uint64_t machine_now(void)
{
	return now;
}

void machine_lock(struct machine *m)
{
	(void)m;
}

void machine_unlock(struct machine *m)
{
	(void)m;
}

void machine_reap(struct machine *m)
{
	(void)m;
}

pid_t machine_pid(struct machine *m, uint32_t slot)
{
	(void)m;
	return (pid_t)slot + 1;
}

void engine_test_reset(void)
{
	memset(&map, 0, sizeof(map));
	map.count = 1;
	map.high = PROCESSES;
	map.gpus[0].running = map.gpus[0].last = SIM_NONE;
	for (uint32_t i = 0; i < PROCESSES; i++)
		machines[i] = (struct machine){.map = &map, .slot = i};
}

void engine_test_clock(uint64_t ns)
{
	now = ns;
}

void engine_test_submit(uint32_t process, uint64_t ready_ns, uint64_t duration_ns, bool more)
{
	engine_submit(&machines[process], 0, ready_ns, duration_ns, more);
}

/* When the process's kernel ended; 0: it has not ended. */
uint64_t engine_test_end(uint32_t process)
{
	uint64_t when;
	return engine_poll(&machines[process], 0, &when) ? when : 0;
}

void engine_test_release(uint32_t process)
{
	engine_release(&machines[process], 0);
}

void engine_test_leave(uint32_t process)
{
	engine_leave(&machines[process], 0);
}

uint64_t engine_test_busy(uint32_t process)
{
	return map.processes[process].usage[0].busy_ns;
}

uint64_t engine_test_gpu_busy(void)
{
	return map.gpus[0].busy_ns;
}
