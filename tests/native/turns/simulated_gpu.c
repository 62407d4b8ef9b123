#include "simulated_gpu.h"

#include <string.h>

#define STEP_NS (5 * US)
#define SLICE_NS (1 * MS)
#define SWITCH_NS (150 * US)

static unsigned draw(struct simulated_gpu *gpu, unsigned below)
{
	gpu->seed = gpu->seed * 1664525u + 1013904223u;
	return (gpu->seed >> 8) % below;
}

void simulated_gpu_init(struct simulated_gpu *gpu, unsigned seed)
{
	memset(gpu, 0, sizeof(*gpu));
	gpu->now = 1000 * SEC;
	gpu->seed = seed;
	turns_init(&gpu->turns, gpu->now);
}

void simulated_gpu_add(struct simulated_gpu *gpu, struct program *program,
                       struct contender *contender)
{
	program->contender = contender;
	atomic_store(&program->credit.credit, ALIQUOT_OPEN);
	atomic_store(&program->work.gates, ALIQUOT_GATES_WORK);
	atomic_store(&program->work.marks_end, 1);
	gpu->programs[gpu->count++] = program;
	turns_enter(contender, &program->worker, &program->work, &program->credit, gpu->now);
	gpu->look_at = gpu->now;
}

void simulated_gpu_note(const struct simulated_gpu *gpu, uint64_t *gpu_ns)
{
	for (unsigned i = 0; i < gpu->count; i++)
		gpu_ns[i] = gpu->programs[i]->gpu_ns;
}

double simulated_gpu_part(const struct simulated_gpu *gpu, const struct program *program,
                          const uint64_t *before)
{
	uint64_t all = 0, mine = 0;
	for (unsigned i = 0; i < gpu->count; i++) {
		uint64_t had = gpu->programs[i]->gpu_ns - before[i];
		all += had;
		mine += gpu->programs[i] == program ? had : 0;
	}
	return all ? (double)mine / (double)all : 0;
}

/* The program's side: one quantum more into the queue, closed at once, if it is at work. */
static void ask(struct simulated_gpu *gpu, struct program *program)
{
	uint64_t closed = program->work.closed, done = program->work.marks[0].done;
	if (program->stopped || gpu->now < program->thinks_until)
		return;
	if (gpu->now >= program->idle_from && gpu->now < program->idle_until)
		return;
	if (program->burst && program->in_burst == program->burst) {
		if (done < closed)
			return;
		program->answers++;
		program->answered_ns += gpu->now - program->asked_at;
		program->in_burst = 0;
		program->thinks_until = gpu->now + program->think_ns;
		return;
	}
	if (program->in_burst == 0)
		program->asked_at = gpu->now;
	while (closed - done < program->depth &&
	       (!program->burst || program->in_burst < program->burst)) {
		closed++;
		program->in_burst++;
		program->work.quanta[closed % ALIQUOT_QUANTA].marks = (uint32_t)closed;
		program->work.quanta[closed % ALIQUOT_QUANTA].expected_ns =
			(uint32_t)((double)program->quantum_ns * (program->says > 0 ? program->says : 1));
		program->work.marks[0].asked = closed;
		program->work.launches++;
		program->work.opened = program->work.closed = closed;
	}
	if (program->only_open && program->in_burst == program->burst)
		program->work.closed = closed - 1;
	if (atomic_load(&program->credit.ring))
		gpu->look_at = gpu->now;
}

static bool can_run(struct simulated_gpu *gpu, struct program *program)
{
	if (!program->left_ns) {
		uint64_t next = program->work.marks[0].done + 1;
		if (next > program->work.closed || next > atomic_load(&program->credit.credit))
			return false;
		program->left_ns = program->quantum_ns / 2 + draw(gpu, (unsigned)program->quantum_ns + 1);
		if (program->never_ends)
			program->left_ns = UINT64_MAX / 2;
	}
	return true;
}

static bool has_begun(const struct program *program, uint64_t quantum)
{
	return program->work.marks[0].done + (program->left_ns > 0) >= quantum;
}

static double greed_of(const struct program *program)
{
	return program->greed > 0 ? program->greed : 1;
}

static bool is_hard(const struct program *program)
{
	return program->contender->settings.policy == ALIQUOT_HARD;
}

/* A step of one client, which has this part of the GPU. */
static void work_part(struct program *program, double part, bool beside_hard)
{
	double did = (double)STEP_NS * part + program->rest_ns;
	uint64_t whole = (uint64_t)did;
	program->rest_ns = did - (double)whole;
	program->gpu_ns += whole;
	program->beside_hard_ns += beside_hard ? whole : 0;
	program->left_ns = program->left_ns > whole ? program->left_ns - whole : 0;
	if (!program->left_ns)
		program->work.marks[0].done++;
}

/* All clients that have passed their gates work. */
static void work_together(struct simulated_gpu *gpu)
{
	double greed = 0;
	unsigned count = 0;
	bool hard = false;
	for (unsigned i = 0; i < gpu->count; i++) {
		struct program *program = gpu->programs[i];
		if (!program->mps || !can_run(gpu, program))
			continue;
		greed += greed_of(program);
		count++;
		hard |= is_hard(program);
	}
	double all = count > 1 && gpu->overlap > 0 ? gpu->overlap : 1;
	gpu->overlapped_ns += count > 1 ? STEP_NS : 0;
	for (unsigned i = 0; i < gpu->count; i++) {
		struct program *program = gpu->programs[i];
		if (program->mps && can_run(gpu, program))
			work_part(program, all * greed_of(program) / greed, hard && count > 1);
	}
}

static void work(struct simulated_gpu *gpu)
{
	struct program *program = gpu->running < gpu->count ? gpu->programs[gpu->running] : NULL;
	bool goes_on = program && gpu->now < gpu->slice_until && can_run(gpu, program);
	for (unsigned i = 1; !goes_on && i <= gpu->count; i++) {
		unsigned next = (gpu->running + i) % gpu->count;
		if (!can_run(gpu, gpu->programs[next]))
			continue;
		bool clients = program && program->mps && gpu->programs[next]->mps;
		if (next != gpu->running && !clients)
			gpu->switch_until = gpu->now + SWITCH_NS;
		gpu->running = next;
		gpu->slice_until = gpu->now + SLICE_NS + (next != gpu->running ? SWITCH_NS : 0);
		program = gpu->programs[next];
		goes_on = true;
	}
	if (!goes_on || gpu->now < gpu->switch_until)
		return;
	if (program->mps) {
		work_together(gpu);
		return;
	}
	program->gpu_ns += STEP_NS;
	if (program->partner && !has_begun(program->partner, program->work.marks[0].done + 1))
		return; /* it spins */
	program->left_ns = program->left_ns > STEP_NS ? program->left_ns - STEP_NS : 0;
	if (!program->left_ns)
		program->work.marks[0].done++;
}

static void step(struct simulated_gpu *gpu)
{
	for (unsigned i = 0; i < gpu->count; i++)
		ask(gpu, gpu->programs[i]);
	work(gpu);
	if (gpu->now >= gpu->look_at) {
		gpu->looks++;
		uint64_t next = turns_look(&gpu->turns, gpu->now);
		/* A thread wakes up late, and sometimes very late. */
		uint64_t late = draw(gpu, 200) ? draw(gpu, 30) * US : draw(gpu, 1000) * US;
		gpu->look_at = next == TURNS_NEVER ? next : next + late;
	}
	gpu->now += STEP_NS;
}

void simulated_gpu_run(struct simulated_gpu *gpu, uint64_t ns)
{
	for (uint64_t end = gpu->now + ns; gpu->now < end;)
		step(gpu);
}

void simulated_gpus_run(struct simulated_gpu *one, struct simulated_gpu *other, uint64_t ns)
{
	for (uint64_t end = one->now + ns; one->now < end;) {
		step(one);
		step(other);
	}
}
