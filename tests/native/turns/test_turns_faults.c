/* Turns when something fails, and with several processes or GPUs in a grant. */
#include "shares.h"

#include <unistd.h>

static struct simulated_gpu other_gpu;

static void an_endless_kernel_blocks_nobody(void)
{
	begin_test(13);
	add_share(50, &busy);
	add_share(50, &busy);
	simulated_gpu_run(&gpu, 500 * MS);
	shares[0].program.never_ends = true;
	simulated_gpu_run(&gpu, 1200 * MS); /* at most the bound */
	CHECK(shares[0].contender.state == CONTENDER_OVERDUE);
	CHECK(shares[0].contender.figures.fallbacks == 1);
	run_noted(1 * SEC);
	CHECK(busy_part(1, SEC) > 35); /* at the same time, by the GPU's own time-slicing */
}

/* Neither the arbiter nor the programs run for a while, on a host that has too much to do. */
static void stand_still(uint64_t ns)
{
	gpu.now += ns;
}

static void a_machine_that_stands_still_makes_nobody_late(void)
{
	begin_test(71);
	add_share(60, &busy);
	add_share(40, &busy);
	for (unsigned i = 0; i < 200; i++) {
		simulated_gpu_run(&gpu, (20 + i % 7) * MS);
		stand_still((60 + i % 11 * 30) * MS);
	}
	CHECK(all_fallbacks() == 0);
	simulated_gpu_run(&gpu, 500 * MS);
	run_noted(2 * SEC);
	NEAR(said(0), 60, 1);
}

static void an_endless_kernel_is_overdue_although_the_arbiter_looks_rarely(void)
{
	begin_test(72);
	add_share(50, &busy);
	add_share(50, &busy);
	simulated_gpu_run(&gpu, 500 * MS);
	shares[0].program.never_ends = true;
	simulated_gpu_run(&gpu, 30 * MS);
	for (unsigned i = 0; i < 20; i++) {
		stand_still(40 * MS);
		simulated_gpu_run(&gpu, 1 * MS);
	}
	CHECK(shares[0].contender.state == CONTENDER_OVERDUE);
}

static void a_process_stopped_in_its_window_blocks_nobody(void)
{
	begin_test(14);
	add_share(50, &syncs);
	add_share(50, &busy);
	shares[0].program.only_open = true;
	simulated_gpu_run(&gpu, 500 * MS);
	shares[0].program.stopped = true;
	simulated_gpu_run(&gpu, 20 * MS);
	run_noted(500 * MS);
	CHECK(busy_part(1, 500 * MS) > 95);
	CHECK(all_fallbacks() == 0);
}

static uint64_t counted(unsigned number)
{
	return shares[number].contender.figures.used_ns;
}

static void work_of_a_stopped_process_is_not_counted_as_use(void)
{
	begin_test(70);
	add_share(50, &busy);
	add_share(50, &busy);
	simulated_gpu_run(&gpu, 500 * MS);
	shares[0].program.never_ends = true;
	simulated_gpu_run(&gpu, 2 * SEC);
	CHECK(shares[0].contender.state == CONTENDER_OVERDUE);
	uint64_t first = counted(0), second = counted(1);
	simulated_gpu_run(&gpu, 1 * SEC);
	NEAR((double)(counted(0) - first) / SEC, 0.5, 0.05); /* a long kernel uses the GPU */
	turns_set_stopped(shares[0].contender.workers, true);
	first = counted(0), second = counted(1);
	simulated_gpu_run(&gpu, 1 * SEC);
	CHECK(counted(0) == first);
	NEAR((double)(counted(1) - second) / SEC, 1, 0.05);
	turns_set_stopped(shares[0].contender.workers, false);
	simulated_gpu_run(&gpu, 1 * SEC);
	CHECK(counted(0) > first);
}

static void a_slice_alone_is_not_observed(void)
{
	begin_test(15);
	struct share *only = add_share(30, &busy);
	simulated_gpu_run(&gpu, 100 * MS);
	uint64_t looks = gpu.looks;
	run_noted(1 * SEC);
	CHECK(gpu.looks == looks);
	CHECK(atomic_load(&only->program.credit.credit) == ALIQUOT_OPEN);
	CHECK(atomic_load(&only->program.credit.pace) == ALIQUOT_ALONE);
	/* A second one that sleeps changes nothing, and rings when it wakes up. */
	struct share *asleep = add_share(70, &busy);
	asleep->program.idle_from = 0;
	asleep->program.idle_until = gpu.now + 2 * SEC;
	simulated_gpu_run(&gpu, 200 * MS);
	CHECK(atomic_load(&asleep->program.credit.ring) == 1);
	looks = gpu.looks;
	simulated_gpu_run(&gpu, 1 * SEC);
	CHECK(gpu.looks == looks);
	simulated_gpu_run(&gpu, 1 * SEC);
	run_noted(2 * SEC);
	NEAR(said(1), 70, 0.7);
}

static void the_bound_adapts_to_slow_drains(void)
{
	begin_test(25);
	struct program slow = long_quanta;
	slow.quantum_ns = 30 * MS;
	add_share(10, &slow);
	add_share(90, &busy);
	simulated_gpu_run(&gpu, 5 * SEC);
	uint64_t before_that = shares[0].contender.figures.fallbacks;
	run_noted(15 * SEC);
	CHECK(shares[0].contender.figures.fallbacks - before_that <= 1);
	NEAR(said(0), 10, 1.5);
}

static void several_processes_are_one_slice(void)
{
	static struct program second;
	begin_test(17);
	add_share(30, &busy);
	add_share(70, &busy);
	second = busy;
	simulated_gpu_add(&gpu, &second, &shares[0].contender);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(5 * SEC);
	uint64_t used = shares[0].contender.figures.used_ns - used_before[0];
	NEAR(100 * (double)used / (5 * SEC), 30, 0.5);
	/* The GPU's own time-slicing divides the window between them, at its cost. */
	CHECK(second.gpu_ns - before[2] > SEC / 2 && shares[0].program.gpu_ns - before[0] > SEC / 2);
	CHECK(shares[0].contender.figures.fallbacks == 0);
}

/* Kernels on two GPUs that wait for each other, and a neighbour on each. */
static void a_grant_holds_its_gpus_together(void)
{
	begin_test(18);
	simulated_gpu_init(&other_gpu, 19);
	struct share *here = add_share(50, &busy);
	add_share(50, &busy);
	struct share *there = &shares[GPU_PROGRAMS], *neighbour = &shares[GPU_PROGRAMS + 1];
	there->settings = neighbour->settings = (struct turns_settings){.percent = 50};
	there->program = neighbour->program = busy;
	turns_add(&other_gpu.turns, &there->contender, &there->settings, &here->contender, gpu.now);
	turns_add(&other_gpu.turns, &neighbour->contender, &neighbour->settings, NULL, gpu.now);
	simulated_gpu_add(&other_gpu, &there->program, &there->contender);
	simulated_gpu_add(&other_gpu, &neighbour->program, &neighbour->contender);
	here->program.partner = &there->program;
	there->program.partner = &here->program;
	simulated_gpus_run(&gpu, &other_gpu, 500 * MS);
	uint64_t done = here->program.work.marks[0].done, at = neighbour->program.gpu_ns;
	simulated_gpus_run(&gpu, &other_gpu, 4 * SEC);
	done = here->program.work.marks[0].done - done;
	/* 4000 quanta of half a millisecond would be half the GPU; some of it is spent waiting. */
	CHECK(done > 2500);
	CHECK((double)(neighbour->program.gpu_ns - at) > 0.40 * 4 * SEC);
	CHECK(here->contender.figures.fallbacks == 0 && there->contender.figures.fallbacks == 0);
}

/* The grant's kernel on the other GPU never ends: its time on this GPU is still charged. */
static void a_stuck_sibling_does_not_stop_the_charge(void)
{
	begin_test(26);
	simulated_gpu_init(&other_gpu, 27);
	struct share *here = add_share(50, &busy);
	add_share(50, &busy);
	struct share *there = &shares[GPU_PROGRAMS], *neighbour = &shares[GPU_PROGRAMS + 1];
	there->settings = neighbour->settings = (struct turns_settings){.percent = 50};
	there->program = neighbour->program = busy;
	there->program.never_ends = true;
	turns_add(&other_gpu.turns, &there->contender, &there->settings, &here->contender, gpu.now);
	turns_add(&other_gpu.turns, &neighbour->contender, &neighbour->settings, NULL, gpu.now);
	simulated_gpu_add(&other_gpu, &there->program, &there->contender);
	simulated_gpu_add(&other_gpu, &neighbour->program, &neighbour->contender);
	simulated_gpus_run(&gpu, &other_gpu, 2 * SEC);
	simulated_gpu_note(&gpu, before);
	simulated_gpus_run(&gpu, &other_gpu, 2 * SEC);
	NEAR(got(0), 50, 2);
}

static void a_corrupt_work_page_hurts_nobody_else(unsigned seed)
{
	begin_test(seed);
	add_share(50, &busy);
	add_share(50, &busy);
	simulated_gpu_run(&gpu, 100 * MS);
	struct program *liar = &shares[0].program;
	simulated_gpu_note(&gpu, before);
	for (unsigned i = 0; i < 1000; i++) {
		seed = seed * 1664525u + 1013904223u;
		uint64_t word = ((uint64_t)seed << 32) ^ (seed * 2654435761u);
		if (seed & 0x100)
			word >>= seed % 64;
		_Atomic uint64_t *words[] = {&liar->work.opened, &liar->work.closed, &liar->work.launches,
		                             &liar->work.marks[0].done};
		atomic_store(words[seed >> 9 & 3], word);
		atomic_store(&liar->work.marks_end, seed & 0x800 ? seed : 1);
		liar->stopped = true;
		simulated_gpu_run(&gpu, 1 * MS);
	}
	CHECK(busy_part(1, 1 * SEC) > 20);
}

/* A page on which everything up to quantum `done` is done, and 64 more are closed. */
static void write_counts(struct aliquot_work_slice *work, uint64_t done)
{
	for (uint64_t i = 0; i < ALIQUOT_QUANTA; i++) {
		atomic_store(&work->quanta[i].marks, 0);
		atomic_store(&work->quanta[i].expected_ns, 0);
	}
	for (uint64_t i = 1; i <= 64; i++)
		atomic_store(&work->quanta[(done + i) % ALIQUOT_QUANTA].marks, 1);
	atomic_store(&work->marks[0].done, 0);
	atomic_store(&work->closed, done + 64);
	atomic_store(&work->opened, done + 64);
}

/* At the end of the range of 64 bits every sum of a count and a length wraps. */
static void counts_near_the_end_of_their_range_hurt_nobody_else(void)
{
	static const uint64_t ends[] = {UINT64_MAX,       UINT64_MAX - 1,    UINT64_MAX - 63,
	                                UINT64_MAX / 2,   ALIQUOT_OPEN,      ALIQUOT_OPEN + 1,
	                                ALIQUOT_OPEN - 1, ALIQUOT_OPEN - 64, UINT64_C(1) << 61};
	for (unsigned i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		begin_test(i);
		add_share(50, &busy);
		add_share(50, &busy);
		simulated_gpu_run(&gpu, 100 * MS);
		struct program *liar = &shares[0].program;
		liar->stopped = true;
		write_counts(&liar->work, ends[i] - 64);
		alarm(20); /* a look that does not return must fail this test, not hang it */
		run_noted(2 * SEC);
		alarm(0);
		CHECK(busy_part(1, 2 * SEC) > 40);
		CHECK(atomic_load(&liar->credit.credit) != ALIQUOT_OPEN);
	}
}

static void backward_counts_stop_only_their_process(void)
{
	begin_test(40);
	add_share(50, &busy);
	add_share(50, &busy);
	simulated_gpu_run(&gpu, 100 * MS);
	struct program *liar = &shares[0].program;
	liar->stopped = true;
	atomic_fetch_sub(&liar->work.closed, 1);
	simulated_gpu_run(&gpu, 5 * MS);
	liar->stopped = false;
	simulated_gpu_run(&gpu, 50 * MS); /* what it has credit for is done */
	run_noted(1 * SEC);
	CHECK(shares[0].program.worker.view.gates == ALIQUOT_GATES_INVALID);
	CHECK(busy_part(0, 1 * SEC) == 0);
	CHECK(busy_part(1, 1 * SEC) > 99);
	turns_leave(&shares[0].contender, &liar->worker);
	CHECK(atomic_load(&liar->credit.credit) == ALIQUOT_OPEN);
}

/* One process in each of two slices, and a third slice whose process says that its gates fail. */
static void a_process_without_gates_changes_no_other_share(bool is_hard)
{
	begin_test(41);
	struct share *hard = add_share(30, &busy);
	hard->settings.policy = is_hard ? ALIQUOT_HARD : ALIQUOT_ELASTIC;
	turns_change(&hard->contender, &hard->settings, gpu.now);
	add_share(20, &busy);
	struct share *liar = add_share(50, &busy);
	liar->program.stopped = true; /* it says that it runs, and does not */
	atomic_store(&liar->program.work.gates, ALIQUOT_GATES_FAIL);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(5 * SEC);
	double first = is_hard ? 30 : 60;
	NEAR(busy_part(0, 5 * SEC), first, 1.5);
	NEAR(busy_part(1, 5 * SEC), 100 - first, 3);
	CHECK(all_fallbacks() == 0);
	/* It was charged for all of that time. */
	NEAR((double)(liar->contender.figures.used_ns - used_before[2]) / (5 * SEC), 1, 0.01);
}

/* A slice of two processes: the one that gates cannot hold uses up the share of both. When it is gone,
 * the other has the share again. */
static void a_process_without_gates_takes_its_own_slices_share(void)
{
	static struct program sibling;
	begin_test(42);
	add_share(50, &busy);
	add_share(50, &busy);
	sibling = busy;
	simulated_gpu_add(&gpu, &sibling, &shares[0].contender);
	atomic_store(&sibling.work.gates, ALIQUOT_GATES_FAIL);
	sibling.stopped = true;
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(2 * SEC);
	CHECK(busy_part(1, 2 * SEC) > 98);
	turns_leave(&shares[0].contender, &sibling.worker);
	simulated_gpu_run(&gpu, 100 * MS);
	run_noted(4 * SEC);
	NEAR(said(0), 50, 1);
}

int main(void)
{
	backward_counts_stop_only_their_process();
	a_process_without_gates_changes_no_other_share(false);
	a_process_without_gates_changes_no_other_share(true);
	a_process_without_gates_takes_its_own_slices_share();
	counts_near_the_end_of_their_range_hurt_nobody_else();
	an_endless_kernel_blocks_nobody();
	a_machine_that_stands_still_makes_nobody_late();
	an_endless_kernel_is_overdue_although_the_arbiter_looks_rarely();
	a_process_stopped_in_its_window_blocks_nobody();
	work_of_a_stopped_process_is_not_counted_as_use();
	a_slice_alone_is_not_observed();
	the_bound_adapts_to_slow_drains();
	a_stuck_sibling_does_not_stop_the_charge();
	several_processes_are_one_slice();
	a_grant_holds_its_gpus_together();
	for (unsigned seed = 0; seed < 5; seed++)
		a_corrupt_work_page_hurts_nobody_else(seed);
	return 0;
}
