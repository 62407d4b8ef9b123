/* The arbiter's turns, on a GPU on paper. The witness is the GPU's own count of what each one had. */
#include "shares.h"

#define SEEDS 18

static void shares_hold_for_any_programs(unsigned seed)
{
	static const struct program *kinds[] = {&busy, &syncs, &small};
	static const uint32_t asked[][8] = {{30, 70},        {10, 90},
	                                    {50, 50},        {50, 30, 20},
	                                    {40, 20, 10, 5}, {12, 12, 12, 12, 12, 12, 12, 12}};
	const uint32_t *percent = asked[seed % 6];
	uint32_t sum = 0;
	begin(seed);
	for (unsigned i = 0; i < 8 && percent[i]; i++) {
		add(percent[i], kinds[(seed / 6 + i * seed) % 3]);
		sum += percent[i];
	}
	card_run(&card, 300 * MS);
	run_noted(4 * SEC);
	for (unsigned i = 0; i < card.count; i++) {
		NEAR(said(i), 100.0 * percent[i] / sum, 0.5);
		NEAR(got(i), 100.0 * percent[i] / sum, 1.6);
	}
	CHECK(all_fallbacks() == 0);
}

static void every_second_holds(void)
{
	begin(3);
	add(30, &busy);
	add(70, &syncs);
	card_run(&card, 300 * MS);
	for (unsigned second = 0; second < 8; second++) {
		run_noted(1 * SEC);
		NEAR(said(0), 30, 2);
	}
}

static void long_quanta_are_made_good(void)
{
	begin(4);
	add(20, &long_quanta);
	add(80, &busy);
	card_run(&card, 300 * MS);
	run_noted(8 * SEC);
	NEAR(said(0), 20, 0.7);
	CHECK(all_fallbacks() == 0);
}

static void what_a_long_burst_overran_is_made_good_after_a_pause(void)
{
	static const struct program bursts = {.quantum_ns = 8 * MS,
	                                      .depth = 10,
	                                      .burst = 10,
	                                      .think_ns = 1 * MS};
	begin(28);
	add(30, &bursts);
	add(70, &busy);
	card_run(&card, 300 * MS);
	run_noted(8 * SEC);
	NEAR(said(0), 30, 1);
}

static void no_percentage_is_an_equal_part_of_the_rest(void)
{
	begin(5);
	add(40, &busy);
	add(0, &busy);
	add(0, &syncs);
	card_run(&card, 300 * MS);
	run_noted(5 * SEC);
	NEAR(said(0), 40, 0.5);
	NEAR(said(1), 30, 0.5);
	NEAR(said(2), 30, 0.5);
}

static void unused_goes_to_the_others_and_comes_back(void)
{
	begin(6);
	add(50, &busy);
	add(30, &busy);
	add(20, &busy);
	card_run(&card, 500 * MS);
	struct program *away = &shares[0].program;
	away->idle_from = card.now;
	away->idle_until = card.now + 1 * SEC;
	card_run(&card, 40 * MS); /* what it had queued is done, and 20 ms */
	run_noted(900 * MS);
	NEAR(said(1), 60, 0.7);
	NEAR(said(2), 40, 0.7);
	card_run(&card, away->idle_until - card.now);
	uint64_t had = away->gpu_ns;
	card_run(&card, 20 * MS);
	CHECK(away->gpu_ns > had);
	run_noted(2 * SEC);
	NEAR(said(0), 50, 1); /* and no more than that: nothing was saved up */
}

static void hard_holds_alone_and_beside_others(void)
{
	struct turns_settings hard = {.percent = 30, .policy = ALIQUOT_HARD};
	begin(7);
	add_as(hard, &busy);
	card_run(&card, 300 * MS);
	run_noted(5 * SEC);
	NEAR(busy_part(0, 5 * SEC), 30, 1.6);
	begin(8);
	add_as(hard, &busy);
	add(10, &busy);
	card_run(&card, 300 * MS);
	run_noted(5 * SEC);
	NEAR(said(0), 30, 0.5);
	CHECK(busy_part(1, 5 * SEC) > 66); /* what hard does not use is not lost */
	begin(9);
	add_as(hard, &busy);
	add_as((struct turns_settings){.percent = 50, .policy = ALIQUOT_HARD}, &busy);
	card_run(&card, 300 * MS);
	run_noted(5 * SEC);
	NEAR(busy_part(0, 5 * SEC), 30, 1.6);
	NEAR(busy_part(1, 5 * SEC), 50, 1.6);
}

static void latency_comes_in_and_background_gives_way(void)
{
	begin(10);
	struct share *fast = add_as((struct turns_settings){.priority = ALIQUOT_LATENCY}, &request);
	add_as((struct turns_settings){.priority = ALIQUOT_BACKGROUND}, &busy);
	card_run(&card, 300 * MS);
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
	begin(11);
	add_as((struct turns_settings){.percent = 20, .priority = ALIQUOT_LATENCY}, &busy);
	add(80, &busy);
	card_run(&card, 1 * SEC);
	run_noted(5 * SEC);
	NEAR(said(0), 20, 2);
}

static void background_runs_only_in_what_others_leave(void)
{
	begin(12);
	add(10, &busy);
	add_as((struct turns_settings){.percent = 90, .priority = ALIQUOT_BACKGROUND}, &busy);
	card_run(&card, 300 * MS);
	run_noted(2 * SEC);
	CHECK(got(1) < 0.5);
	shares[0].program.idle_from = card.now;
	shares[0].program.idle_until = card.now + SEC;
	card_run(&card, 60 * MS);
	run_noted(500 * MS);
	CHECK(got(1) > 99);
}

static void a_change_counts_from_the_next_window(void)
{
	begin(16);
	add(50, &busy);
	add(50, &busy);
	card_run(&card, 500 * MS);
	shares[0].settings.percent = 20;
	turns_change(&shares[0].contender, &shares[0].settings, card.now);
	card_run(&card, 100 * MS);
	run_noted(3 * SEC);
	NEAR(said(0), 100.0 * 20 / 70, 0.7);
}

static void what_was_used_as_elastic_is_not_owed_as_hard(void)
{
	begin(20);
	add(30, &busy);
	card_run(&card, 100 * MS);
	add(30, &busy);
	card_run(&card, 3 * SEC);
	shares[0].settings.policy = ALIQUOT_HARD;
	turns_change(&shares[0].contender, &shares[0].settings, card.now);
	run_noted(1 * SEC);
	NEAR(said(0), 30, 1.5);
}

static const struct program seldom = {.quantum_ns = 500 * US,
                                      .depth = 1,
                                      .burst = 1,
                                      .think_ns = 20 * MS};

static void nobody_saves_up_what_it_did_not_use(void)
{
	begin(21);
	add(50, &seldom);
	add(50, &busy);
	card_run(&card, 5 * SEC);
	shares[0].program.depth = 40; /* from now on it has as much to do as the other */
	shares[0].program.burst = 0;
	card_run(&card, 200 * MS);
	run_noted(1 * SEC);
	NEAR(said(0), 50, 2);
}

static void one_that_waits_in_the_background_changes_nothing(void)
{
	begin(22);
	add(50, &busy);
	add(50, &busy);
	add_as((struct turns_settings){.priority = ALIQUOT_BACKGROUND}, &busy);
	card_run(&card, 4 * SEC);
	shares[0].program.idle_from = card.now;
	shares[0].program.idle_until = card.now + SEC;
	card_run(&card, 1100 * MS);
	run_noted(1 * SEC);
	NEAR(said(0), 50, 2);
}

static void a_regular_latency_slice_lets_long_quanta_run(void)
{
	begin(23);
	struct program often = request, slow = long_quanta;
	often.think_ns = 15500 * US;
	slow.quantum_ns = 15 * MS;
	add_as((struct turns_settings){.percent = 20, .priority = ALIQUOT_LATENCY}, &often);
	add(80, &slow);
	card_run(&card, 1 * SEC);
	run_noted(3 * SEC);
	CHECK(busy_part(1, 3 * SEC) > 75);
}

static void what_hard_owes_is_paid_while_it_sleeps(void)
{
	begin(24);
	struct program once = {.quantum_ns = 1 * SEC, .depth = 1, .burst = 1, .think_ns = 20 * SEC};
	add_as((struct turns_settings){.percent = 25, .policy = ALIQUOT_HARD}, &once);
	card_run(&card, 15 * SEC);
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
	every_second_holds();
	long_quanta_are_made_good();
	what_a_long_burst_overran_is_made_good_after_a_pause();
	no_percentage_is_an_equal_part_of_the_rest();
	unused_goes_to_the_others_and_comes_back();
	hard_holds_alone_and_beside_others();
	latency_comes_in_and_background_gives_way();
	latency_keeps_within_its_share();
	background_runs_only_in_what_others_leave();
	a_change_counts_from_the_next_window();
	what_was_used_as_elastic_is_not_owed_as_hard();
	nobody_saves_up_what_it_did_not_use();
	one_that_waits_in_the_background_changes_nothing();
	a_regular_latency_slice_lets_long_quanta_run();
	what_hard_owes_is_paid_while_it_sleeps();
	return 0;
}
