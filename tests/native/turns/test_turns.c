/* The arbiter's turns, on a simulated GPU, checked against the GPU's own count of time. */
#include "shares.h"

#ifndef SEEDS
#define SEEDS 18
#endif

static void shares_hold_for_any_programs(unsigned seed)
{
	static const struct program *kinds[] = {&busy, &syncs, &small};
	static const uint32_t asked[][8] = {{30, 70},        {10, 90},
	                                    {50, 50},        {50, 30, 20},
	                                    {40, 20, 10, 5}, {12, 12, 12, 12, 12, 12, 12, 12}};
	const uint32_t *percent = asked[seed % 6];
	uint32_t sum = 0;
	begin_test(seed);
	for (unsigned i = 0; i < 8 && percent[i]; i++) {
		add_share(percent[i], kinds[(seed / 6 + i * seed) % 3]);
		sum += percent[i];
	}
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(4 * SEC);
	for (unsigned i = 0; i < gpu.count; i++) {
		NEAR(said(i), 100.0 * percent[i] / sum, 0.5);
		NEAR(got(i), 100.0 * percent[i] / sum, 1.6);
	}
	CHECK(all_fallbacks() == 0);
}

static void shares_hold_in_every_second(void)
{
	begin_test(3);
	add_share(30, &busy);
	add_share(70, &syncs);
	simulated_gpu_run(&gpu, 300 * MS);
	for (unsigned second = 0; second < 8; second++) {
		run_noted(1 * SEC);
		NEAR(said(0), 30, 2);
	}
}

static void long_quanta_are_compensated(void)
{
	begin_test(4);
	add_share(20, &long_quanta);
	add_share(80, &busy);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(8 * SEC);
	NEAR(said(0), 20, 0.7);
	CHECK(all_fallbacks() == 0);
}

static void a_long_burst_is_compensated_after_a_pause(void)
{
	static const struct program bursts = {.quantum_ns = 8 * MS,
	                                      .depth = 10,
	                                      .burst = 10,
	                                      .think_ns = 1 * MS};
	begin_test(28);
	add_share(30, &bursts);
	add_share(70, &busy);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(8 * SEC);
	NEAR(said(0), 30, 1);
}

static void no_percentage_is_an_equal_part_of_the_rest(void)
{
	begin_test(5);
	add_share(40, &busy);
	add_share(0, &busy);
	add_share(0, &syncs);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(5 * SEC);
	NEAR(said(0), 40, 0.5);
	NEAR(said(1), 30, 0.5);
	NEAR(said(2), 30, 0.5);
}

static void unused_time_goes_to_the_others_and_returns(void)
{
	begin_test(6);
	add_share(50, &busy);
	add_share(30, &busy);
	add_share(20, &busy);
	simulated_gpu_run(&gpu, 500 * MS);
	struct program *away = &shares[0].program;
	away->idle_from = gpu.now;
	away->idle_until = gpu.now + 1 * SEC;
	simulated_gpu_run(&gpu, 40 * MS); /* its queued work is done, and 20 ms more */
	run_noted(900 * MS);
	NEAR(said(1), 60, 0.7);
	NEAR(said(2), 40, 0.7);
	simulated_gpu_run(&gpu, away->idle_until - gpu.now);
	uint64_t had = away->gpu_ns;
	simulated_gpu_run(&gpu, 20 * MS);
	CHECK(away->gpu_ns > had);
	run_noted(2 * SEC);
	NEAR(said(0), 50, 1); /* and no more than that: nothing was saved up */
}

static void hard_holds_alone_and_with_others(void)
{
	struct turns_settings hard = {.percent = 30, .policy = ALIQUOT_HARD};
	begin_test(7);
	add_share_as(hard, &busy);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(5 * SEC);
	NEAR(busy_part(0, 5 * SEC), 30, 1.6);
	begin_test(8);
	add_share_as(hard, &busy);
	add_share(10, &busy);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(5 * SEC);
	NEAR(said(0), 30, 0.5);
	CHECK(busy_part(1, 5 * SEC) > 66); /* what hard does not use is not lost */
	begin_test(9);
	add_share_as(hard, &busy);
	add_share_as((struct turns_settings){.percent = 50, .policy = ALIQUOT_HARD}, &busy);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(5 * SEC);
	NEAR(busy_part(0, 5 * SEC), 30, 1.6);
	NEAR(busy_part(1, 5 * SEC), 50, 1.6);
}

static void latency_starts_at_once_and_background_yields(void)
{
	begin_test(10);
	struct share *fast = add_share_as((struct turns_settings){.priority = ALIQUOT_LATENCY},
	                                  &request);
	add_share_as((struct turns_settings){.priority = ALIQUOT_BACKGROUND}, &busy);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(5 * SEC);
	/* Half a millisecond of work, the change to it, and little more: the holder has made room. */
	uint64_t answers = fast->program.answers, answered = fast->program.answered_ns;
	run_noted(5 * SEC);
	answered = (fast->program.answered_ns - answered) / (fast->program.answers - answers);
	CHECK(answered < 900 * US);
	CHECK(busy_part(1, 5 * SEC) > 85);
	CHECK(turns_wait_quantile(&fast->contender.figures, 0.99) < 0.002);
}

static void latency_keeps_within_its_share(void)
{
	begin_test(11);
	add_share_as((struct turns_settings){.percent = 20, .priority = ALIQUOT_LATENCY}, &busy);
	add_share(80, &busy);
	simulated_gpu_run(&gpu, 1 * SEC);
	run_noted(5 * SEC);
	NEAR(said(0), 20, 2);
}

static void background_runs_only_in_idle_time(void)
{
	begin_test(12);
	add_share(10, &busy);
	add_share_as((struct turns_settings){.percent = 90, .priority = ALIQUOT_BACKGROUND}, &busy);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(2 * SEC);
	CHECK(got(1) < 0.5);
	shares[0].program.idle_from = gpu.now;
	shares[0].program.idle_until = gpu.now + SEC;
	simulated_gpu_run(&gpu, 60 * MS);
	run_noted(500 * MS);
	CHECK(got(1) > 99);
}

static void a_change_counts_from_the_next_window(void)
{
	begin_test(16);
	add_share(50, &busy);
	add_share(50, &busy);
	simulated_gpu_run(&gpu, 500 * MS);
	shares[0].settings.percent = 20;
	turns_change(&shares[0].contender, &shares[0].settings, gpu.now);
	simulated_gpu_run(&gpu, 100 * MS);
	run_noted(3 * SEC);
	NEAR(said(0), 100.0 * 20 / 70, 0.7);
}

static void time_used_as_elastic_does_not_count_as_hard(void)
{
	begin_test(20);
	add_share(30, &busy);
	simulated_gpu_run(&gpu, 100 * MS);
	add_share(30, &busy);
	simulated_gpu_run(&gpu, 3 * SEC);
	shares[0].settings.policy = ALIQUOT_HARD;
	turns_change(&shares[0].contender, &shares[0].settings, gpu.now);
	run_noted(1 * SEC);
	NEAR(said(0), 30, 1.5);
}

static const struct program seldom = {.quantum_ns = 500 * US,
                                      .depth = 1,
                                      .burst = 1,
                                      .think_ns = 20 * MS};

static void unused_time_is_not_saved_up(void)
{
	begin_test(21);
	add_share(50, &seldom);
	add_share(50, &busy);
	simulated_gpu_run(&gpu, 5 * SEC);
	shares[0].program.depth = 40; /* from now on it has as much to do as the other */
	shares[0].program.burst = 0;
	simulated_gpu_run(&gpu, 200 * MS);
	run_noted(1 * SEC);
	NEAR(said(0), 50, 2);
}

static void a_waiting_background_slice_changes_nothing(void)
{
	begin_test(22);
	add_share(50, &busy);
	add_share(50, &busy);
	add_share_as((struct turns_settings){.priority = ALIQUOT_BACKGROUND}, &busy);
	simulated_gpu_run(&gpu, 4 * SEC);
	shares[0].program.idle_from = gpu.now;
	shares[0].program.idle_until = gpu.now + SEC;
	simulated_gpu_run(&gpu, 1100 * MS);
	run_noted(1 * SEC);
	NEAR(said(0), 50, 2);
}

static void a_regular_latency_slice_lets_long_quanta_run(void)
{
	begin_test(23);
	struct program often = request, slow = long_quanta;
	often.think_ns = 15500 * US;
	slow.quantum_ns = 15 * MS;
	add_share_as((struct turns_settings){.percent = 20, .priority = ALIQUOT_LATENCY}, &often);
	add_share(80, &slow);
	simulated_gpu_run(&gpu, 1 * SEC);
	run_noted(3 * SEC);
	CHECK(busy_part(1, 3 * SEC) > 75);
}

static void hard_pays_back_while_idle(void)
{
	begin_test(24);
	struct program once = {.quantum_ns = 1 * SEC, .depth = 1, .burst = 1, .think_ns = 20 * SEC};
	add_share_as((struct turns_settings){.percent = 25, .policy = ALIQUOT_HARD}, &once);
	simulated_gpu_run(&gpu, 15 * SEC);
	shares[0].program.thinks_until = 0;
	shares[0].program.burst = 0;
	shares[0].program.quantum_ns = 500 * US;
	run_noted(1 * SEC);
	NEAR(busy_part(0, 1 * SEC), 25, 3);
}

int main(void)
{
	for (unsigned seed = 0; seed < SEEDS; seed++)
		shares_hold_for_any_programs(seed);
	shares_hold_in_every_second();
	long_quanta_are_compensated();
	a_long_burst_is_compensated_after_a_pause();
	no_percentage_is_an_equal_part_of_the_rest();
	unused_time_goes_to_the_others_and_returns();
	hard_holds_alone_and_with_others();
	latency_starts_at_once_and_background_yields();
	latency_keeps_within_its_share();
	background_runs_only_in_idle_time();
	a_change_counts_from_the_next_window();
	time_used_as_elastic_does_not_count_as_hard();
	unused_time_is_not_saved_up();
	a_waiting_background_slice_changes_nothing();
	a_regular_latency_slice_lets_long_quanta_run();
	hard_pays_back_while_idle();
	return 0;
}
