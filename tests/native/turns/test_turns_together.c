/* Slices of several grants whose kernels wait for each other, on one GPU and on two. */
#include "shares.h"

static struct simulated_gpu other_gpu;

/* A slice of a grant that runs together with that of `with`. */
static struct share *add_together(struct simulated_gpu *where, struct share *share,
                                  struct turns_settings settings, const struct program *how,
                                  struct share *with)
{
	share->settings = settings;
	share->program = *how;
	turns_add(&where->turns, &share->contender, &share->settings, with ? &with->contender : NULL,
	          where->now);
	simulated_gpu_add(where, &share->program, &share->contender);
	return share;
}

static struct share *add_companion(uint32_t percent, const struct program *how, struct share *with)
{
	return add_together(&gpu, &shares[gpu.count], (struct turns_settings){.percent = percent}, how,
	                    with);
}

static void meet(struct share *one, struct share *other)
{
	one->program.partner = &other->program;
	other->program.partner = &one->program;
}

static uint64_t done_by(const struct share *share)
{
	return share->program.work.marks[0].done;
}

/* Two grants whose kernels meet, and a busy third; the quanta that the pair finished in 4 s. */
static uint64_t run_pair(bool together)
{
	begin_test(50);
	struct share *one = add_companion(25, &busy, NULL);
	struct share *other = add_companion(25, &busy, together ? one : NULL);
	add_share(50, &busy);
	meet(one, other);
	simulated_gpu_run(&gpu, 500 * MS);
	uint64_t before_that = done_by(one);
	run_noted(4 * SEC);
	return done_by(one) - before_that;
}

static void kernels_of_two_grants_that_wait_for_each_other_progress_without_fallbacks(void)
{
	uint64_t alone = run_pair(false), fallbacks = all_fallbacks();
	CHECK(fallbacks > 0);
	uint64_t together = run_pair(true);
	CHECK(all_fallbacks() == 0);
	NEAR(said(2), 50, 1);
	CHECK(busy_part(2, 4 * SEC) > 45);
	/* Half of the GPU for two that spend half of it waiting: 1000 quanta of half a millisecond each,
	 * less what the GPU takes to switch between them. */
	CHECK(together > 700);
	printf(
		"4 s beside a busy neighbour: %llu quanta with %llu fallbacks; together: %llu with none\n",
		(unsigned long long)alone, (unsigned long long)fallbacks, (unsigned long long)together);
}

/* One of them is away for a while, as on a machine with too much to do: the other is overdue, its
 * kernel waits for the next one of the first, and that needs credit. */
static void a_group_goes_on_after_one_of_it_was_away(unsigned seed)
{
	begin_test(80 + seed);
	struct share *one = add_companion(25, &busy, NULL);
	struct share *other = add_companion(25, &busy, one);
	add_share(50, &busy);
	meet(one, other);
	for (unsigned i = 0; i < 20; i++) {
		simulated_gpu_run(&gpu, (100 + 13 * i) * MS);
		other->program.stopped = true;
		simulated_gpu_run(&gpu, (60 + 37 * i) * MS);
		other->program.stopped = false;
		uint64_t before_that = done_by(one);
		simulated_gpu_run(&gpu, 500 * MS);
		CHECK(done_by(one) > before_that + 20);
	}
}

static void the_weights_of_a_group_add_up(void)
{
	begin_test(51);
	struct share *one = add_companion(10, &busy, NULL);
	struct share *other = add_companion(40, &syncs, one);
	add_share(50, &busy);
	(void)other;
	simulated_gpu_run(&gpu, 500 * MS);
	run_noted(5 * SEC);
	NEAR(said(0) + said(1), 50, 1.5);
	NEAR(said(2), 50, 1.5);
	CHECK(all_fallbacks() == 0);
}

/* Each counts for itself again as soon as the other has no work. */
static void a_group_with_one_member_at_work_has_the_weight_of_that_one(void)
{
	begin_test(52);
	struct share *one = add_companion(10, &busy, NULL);
	struct share *other = add_companion(40, &busy, one);
	add_share(40, &busy);
	simulated_gpu_run(&gpu, 2 * SEC);
	other->program.stopped = true;
	simulated_gpu_run(&gpu, 200 * MS);
	run_noted(5 * SEC);
	NEAR(said(0), 20, 1.5);
	NEAR(said(2), 80, 1.5);
	other->program.stopped = false;
	simulated_gpu_run(&gpu, 200 * MS);
	run_noted(5 * SEC);
	NEAR(said(2), 100.0 * 40 / 90, 1.5);
}

static void a_group_alone_on_the_gpu_has_its_gates_open(void)
{
	begin_test(53);
	struct share *one = add_companion(25, &busy, NULL);
	struct share *other = add_companion(25, &busy, one);
	simulated_gpu_run(&gpu, 200 * MS);
	CHECK(!gpu.turns.contended);
	CHECK(atomic_load(&one->program.credit.credit) == ALIQUOT_OPEN);
	CHECK(atomic_load(&other->program.credit.credit) == ALIQUOT_OPEN);
}

/* A background slice gets what others leave, whatever its group. */
static void a_group_gives_no_window_to_another_priority(void)
{
	begin_test(54);
	struct share *one = add_companion(10, &busy, NULL);
	add_together(&gpu, &shares[gpu.count],
	             (struct turns_settings){.percent = 90, .priority = ALIQUOT_BACKGROUND}, &busy,
	             one);
	add_share(90, &busy);
	simulated_gpu_run(&gpu, 500 * MS);
	run_noted(3 * SEC);
	NEAR(said(0), 10, 1);
	CHECK(busy_part(1, 3 * SEC) < 1);
}

static void a_member_that_leaves_during_the_window_takes_nobody_along(void)
{
	for (unsigned which = 0; which < 2; which++) {
		begin_test(55 + which);
		struct share *pair[2];
		pair[0] = add_companion(25, &busy, NULL);
		pair[1] = add_companion(25, &busy, pair[0]);
		add_share(50, &busy);
		simulated_gpu_run(&gpu, 300 * MS);
		for (unsigned i = 0; i < 1000 && pair[0]->contender.state != CONTENDER_HOLDS; i++)
			simulated_gpu_run(&gpu, 1 * MS);
		CHECK(pair[1]->contender.state == CONTENDER_HOLDS);
		turns_remove(&pair[which]->contender);
		pair[which]->program.stopped = true;
		simulated_gpu_run(&gpu, 500 * MS);
		run_noted(2 * SEC);
		NEAR(said(1 - which), 100.0 / 3, 1.5);
		NEAR(said(2), 200.0 / 3, 1.5);
	}
}

/* Two grants with a slice on each of two GPUs, all four waiting in a chain, and a neighbour on each. */
static void a_group_holds_several_gpus_together(void)
{
	begin_test(60);
	simulated_gpu_init(&other_gpu, 61);
	struct turns_settings quarter = {.percent = 25};
	struct share *one = add_companion(25, &busy, NULL), *two = add_companion(25, &busy, one);
	add_share(50, &busy);
	struct share *far_one = add_together(&other_gpu, &shares[GPU_PROGRAMS], quarter, &busy, one);
	struct share *far_two = add_together(&other_gpu, &shares[GPU_PROGRAMS + 1], quarter, &busy,
	                                     one);
	struct share *far = add_together(&other_gpu, &shares[GPU_PROGRAMS + 2],
	                                 (struct turns_settings){.percent = 50}, &busy, NULL);
	meet(one, far_two);
	meet(two, far_one);
	simulated_gpus_run(&gpu, &other_gpu, 500 * MS);
	uint64_t done = done_by(one), at = far->program.gpu_ns;
	simulated_gpus_run(&gpu, &other_gpu, 4 * SEC);
	CHECK(done_by(one) - done > 500);
	CHECK((double)(far->program.gpu_ns - at) > 0.40 * 4 * SEC);
	CHECK(all_fallbacks() + far_one->contender.figures.fallbacks +
	          far_two->contender.figures.fallbacks ==
	      0);
}

/* One member with most of its GPU begins there again and again, and calls the other each time. */
static void a_group_gets_no_more_of_a_gpu_by_calling_often(void)
{
	static const struct program often = {.quantum_ns = 300 * US,
	                                     .depth = 3,
	                                     .burst = 3,
	                                     .think_ns = 100 * US};
	begin_test(62);
	simulated_gpu_init(&other_gpu, 63);
	struct turns_settings latency = {.percent = 90, .priority = ALIQUOT_LATENCY};
	struct share *caller = add_together(&gpu, &shares[gpu.count], latency, &often, NULL);
	add_share(10, &busy);
	add_together(&other_gpu, &shares[GPU_PROGRAMS], (struct turns_settings){.percent = 10}, &busy,
	             caller);
	struct share *far = add_together(&other_gpu, &shares[GPU_PROGRAMS + 1],
	                                 (struct turns_settings){.percent = 90}, &busy, NULL);
	simulated_gpus_run(&gpu, &other_gpu, 500 * MS);
	uint64_t at = far->program.gpu_ns;
	simulated_gpus_run(&gpu, &other_gpu, 4 * SEC);
	NEAR(100 * (double)(far->program.gpu_ns - at) / (4 * SEC), 88, 4);
}

/* A member that is late gets no help from one whose gates are open anyway. */
static void a_late_member_closes_no_gates_of_a_member_alone_on_its_gpu(void)
{
	begin_test(64);
	simulated_gpu_init(&other_gpu, 65);
	struct share *late = add_companion(50, &busy, NULL);
	add_share(50, &busy);
	struct share *alone = add_together(&other_gpu, &shares[GPU_PROGRAMS],
	                                   (struct turns_settings){.percent = 50}, &busy, late);
	simulated_gpus_run(&gpu, &other_gpu, 500 * MS);
	late->program.never_ends = true;
	for (unsigned i = 0; i < 1000; i++) {
		CHECK(!other_gpu.turns.contended);
		CHECK(atomic_load(&alone->program.credit.credit) == ALIQUOT_OPEN);
		simulated_gpus_run(&gpu, &other_gpu, 50 * US);
	}
}

/* A kernel that never ends on one GPU: help for it gives the group no more of another GPU. */
static void a_member_that_is_late_for_ever_gets_its_group_no_more_of_another_gpu(uint8_t policy)
{
	begin_test(66);
	simulated_gpu_init(&other_gpu, 67);
	struct share *late = add_companion(50, &busy, NULL);
	add_share(50, &busy);
	struct share *helps = add_together(&other_gpu, &shares[GPU_PROGRAMS],
	                                   (struct turns_settings){.percent = 10, .policy = policy},
	                                   &busy, late);
	struct share *far = add_together(&other_gpu, &shares[GPU_PROGRAMS + 1],
	                                 (struct turns_settings){.percent = 90}, &busy, NULL);
	simulated_gpus_run(&gpu, &other_gpu, 500 * MS);
	late->program.never_ends = true;
	simulated_gpus_run(&gpu, &other_gpu, 2 * SEC);
	uint64_t had = helps->program.gpu_ns, at = far->program.gpu_ns;
	simulated_gpus_run(&gpu, &other_gpu, 10 * SEC);
	NEAR(100 * (double)(helps->program.gpu_ns - had) / (10 * SEC), 10, 2);
	NEAR(100 * (double)(far->program.gpu_ns - at) / (10 * SEC), 88, 4);
}

/* The GPU's time-slicing gives such a kernel half; help for it takes little of the neighbour's half. */
static void a_kernel_that_never_ends_gets_little_help(uint8_t policy)
{
	struct turns_settings little = {.percent = 1, .policy = policy};
	begin_test(68);
	struct share *late = add_together(&gpu, &shares[gpu.count], little, &busy, NULL);
	struct share *helps = add_together(&gpu, &shares[gpu.count], little, &long_quanta, late);
	struct share *neighbour = add_share(98, &busy);
	simulated_gpu_run(&gpu, 500 * MS);
	late->program.never_ends = true;
	simulated_gpu_run(&gpu, 2 * SEC);
	uint64_t had = helps->program.gpu_ns, at = neighbour->program.gpu_ns;
	simulated_gpu_run(&gpu, 10 * SEC);
	CHECK(helps->program.gpu_ns - had < SEC);
	CHECK(neighbour->program.gpu_ns - at > 37 * SEC / 10);
}

int main(void)
{
	a_kernel_that_never_ends_gets_little_help(ALIQUOT_ELASTIC);
	a_kernel_that_never_ends_gets_little_help(ALIQUOT_HARD);
	a_member_that_is_late_for_ever_gets_its_group_no_more_of_another_gpu(ALIQUOT_ELASTIC);
	a_member_that_is_late_for_ever_gets_its_group_no_more_of_another_gpu(ALIQUOT_HARD);
	a_late_member_closes_no_gates_of_a_member_alone_on_its_gpu();
	a_group_gets_no_more_of_a_gpu_by_calling_often();
	kernels_of_two_grants_that_wait_for_each_other_progress_without_fallbacks();
	for (unsigned seed = 0; seed < 5; seed++)
		a_group_goes_on_after_one_of_it_was_away(seed);
	the_weights_of_a_group_add_up();
	a_group_with_one_member_at_work_has_the_weight_of_that_one();
	a_group_alone_on_the_gpu_has_its_gates_open();
	a_group_gives_no_window_to_another_priority();
	a_member_that_leaves_during_the_window_takes_nobody_along();
	a_group_holds_several_gpus_together();
	return 0;
}
