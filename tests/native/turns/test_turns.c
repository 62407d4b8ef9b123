/* The arbiter's turns, on a GPU on paper. The witness is the GPU's own count of what each one had. */
#include "card.h"

#include "../check.h"

#include <math.h>
#include <string.h>

#define SEEDS 18

struct share {
	struct turns_settings settings;
	struct program program;
	struct contender contender;
};

static struct card card, other_card;
static struct share shares[2 * CARD_PROGRAMS];
static uint64_t before[CARD_PROGRAMS], used_before[CARD_PROGRAMS];

/* Keeps the GPU busy; waits for its work now and then; many small ones, each waited for. */
static const struct program busy = {.quantum_ns = 500 * US, .depth = 40};
static const struct program syncs = {.quantum_ns = 300 * US,
                                     .depth = 8,
                                     .burst = 8,
                                     .think_ns = 60 * US};
static const struct program small = {.quantum_ns = 40 * US,
                                     .depth = 20,
                                     .burst = 20,
                                     .think_ns = 40 * US};
static const struct program long_quanta = {.quantum_ns = 8 * MS, .depth = 4};
static const struct program request = {.quantum_ns = 500 * US,
                                       .depth = 1,
                                       .burst = 1,
                                       .think_ns = 9500 * US};

static void begin(unsigned seed)
{
	memset(shares, 0, sizeof(shares));
	card_init(&card, seed);
}

static struct share *add_as(struct turns_settings settings, const struct program *how)
{
	struct share *share = &shares[card.count];
	share->settings = settings;
	share->program = *how;
	turns_add(&card.turns, &share->contender, &share->settings, NULL, card.now);
	card_add(&card, &share->program, &share->contender);
	return share;
}

static struct share *add(uint32_t percent, const struct program *how)
{
	return add_as((struct turns_settings){.percent = percent}, how);
}

static void run_noted(uint64_t ns)
{
	card_note(&card, before);
	for (unsigned i = 0; i < card.count; i++)
		used_before[i] = shares[i].contender.figures.used_ns;
	card_run(&card, ns);
}

/* Percent of the GPU time that was had since run_noted began; of all that passed. */
static double got(unsigned i)
{
	return 100 * card_part(&card, &shares[i].program, before);
}

static double busy_part(unsigned i, uint64_t ns)
{
	return 100 * (double)(shares[i].program.gpu_ns - before[i]) / (double)ns;
}

/* The same by the arbiter's own stopwatch. */
static double said(unsigned i)
{
	uint64_t all = 0;
	for (unsigned k = 0; k < card.count; k++)
		all += shares[k].contender.figures.used_ns - used_before[k];
	return 100 * (double)(shares[i].contender.figures.used_ns - used_before[i]) / (double)all;
}

static uint64_t all_fallbacks(void)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < card.count; i++)
		sum += shares[i].contender.figures.fallbacks;
	return sum;
}

#define NEAR(value, wanted, by)                                                                    \
	do {                                                                                           \
		double value_ = (value), wanted_ = (wanted);                                               \
		if (fabs(value_ - wanted_) > (by)) {                                                       \
			fprintf(stderr, "%s:%d: %s is %.3f, not %.3f\n", __FILE__, __LINE__, #value, value_,   \
			        wanted_);                                                                      \
			exit(1);                                                                               \
		}                                                                                          \
	} while (0)

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

static void a_kernel_that_never_ends_keeps_nobody_out(void)
{
	begin(13);
	add(50, &busy);
	add(50, &busy);
	card_run(&card, 500 * MS);
	shares[0].program.never_ends = true;
	card_run(&card, 1200 * MS); /* the bound, at most */
	CHECK(shares[0].contender.state == CONTENDER_OVERDUE);
	CHECK(shares[0].contender.figures.fallbacks == 1);
	run_noted(1 * SEC);
	CHECK(busy_part(1, SEC) > 35); /* beside it, as the card itself shares */
}

static void one_stopped_in_its_window_keeps_nobody_out(void)
{
	begin(14);
	add(50, &syncs);
	add(50, &busy);
	shares[0].program.only_open = true;
	card_run(&card, 500 * MS);
	shares[0].program.stopped = true;
	card_run(&card, 20 * MS);
	run_noted(500 * MS);
	CHECK(busy_part(1, 500 * MS) > 95);
	CHECK(all_fallbacks() == 0);
}

static void alone_is_left_alone(void)
{
	begin(15);
	struct share *only = add(30, &busy);
	card_run(&card, 100 * MS);
	uint64_t looks = card.looks;
	run_noted(1 * SEC);
	CHECK(card.looks == looks);
	CHECK(atomic_load(&only->program.credit.credit) == ALIQUOT_OPEN);
	CHECK(atomic_load(&only->program.credit.pace) == ALIQUOT_ALONE);
	/* A second one that sleeps changes nothing, and rings when it wakes up. */
	struct share *asleep = add(70, &busy);
	asleep->program.idle_from = 0;
	asleep->program.idle_until = card.now + 2 * SEC;
	card_run(&card, 200 * MS);
	CHECK(atomic_load(&asleep->program.credit.ring) == 1);
	looks = card.looks;
	card_run(&card, 1 * SEC);
	CHECK(card.looks == looks);
	card_run(&card, 1 * SEC);
	run_noted(2 * SEC);
	NEAR(said(1), 70, 0.7);
}

static void a_change_counts_from_the_next_window(void)
{
	begin(16);
	add(50, &busy);
	add(50, &busy);
	card_run(&card, 500 * MS);
	shares[0].settings.percent = 20;
	turns_change(&shares[0].contender, &shares[0].settings);
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
	turns_change(&shares[0].contender, &shares[0].settings);
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

static void a_slice_that_is_slow_to_end_is_known_for_it(void)
{
	begin(25);
	struct program slow = long_quanta;
	slow.quantum_ns = 30 * MS;
	add(10, &slow);
	add(90, &busy);
	card_run(&card, 5 * SEC);
	uint64_t before_that = shares[0].contender.figures.fallbacks;
	run_noted(15 * SEC);
	CHECK(shares[0].contender.figures.fallbacks - before_that <= 1);
	NEAR(said(0), 10, 1.5);
}

static void several_processes_are_one_slice(void)
{
	static struct program second;
	begin(17);
	add(30, &busy);
	add(70, &busy);
	second = busy;
	card_add(&card, &second, &shares[0].contender);
	card_run(&card, 300 * MS);
	run_noted(5 * SEC);
	uint64_t used = shares[0].contender.figures.used_ns - used_before[0];
	NEAR(100 * (double)used / (5 * SEC), 30, 0.5);
	/* Between themselves they have the card's own time-slicing, at its price. */
	CHECK(second.gpu_ns - before[2] > SEC / 2 && shares[0].program.gpu_ns - before[0] > SEC / 2);
	CHECK(shares[0].contender.figures.fallbacks == 0);
}

/* Kernels on two GPUs that wait for each other, and a neighbour on each. */
static void a_grant_holds_its_gpus_together(void)
{
	begin(18);
	card_init(&other_card, 19);
	struct share *here = add(50, &busy);
	add(50, &busy);
	struct share *there = &shares[CARD_PROGRAMS], *neighbour = &shares[CARD_PROGRAMS + 1];
	there->settings = neighbour->settings = (struct turns_settings){.percent = 50};
	there->program = neighbour->program = busy;
	turns_add(&other_card.turns, &there->contender, &there->settings, &here->contender, card.now);
	turns_add(&other_card.turns, &neighbour->contender, &neighbour->settings, NULL, card.now);
	card_add(&other_card, &there->program, &there->contender);
	card_add(&other_card, &neighbour->program, &neighbour->contender);
	here->program.partner = &there->program;
	there->program.partner = &here->program;
	cards_run(&card, &other_card, 500 * MS);
	uint64_t done = here->program.work.marks[0].done, at = neighbour->program.gpu_ns;
	cards_run(&card, &other_card, 4 * SEC);
	done = here->program.work.marks[0].done - done;
	/* 4000 quanta of half a millisecond would be half the GPU; some of it is spent waiting. */
	CHECK(done > 2500);
	CHECK((double)(neighbour->program.gpu_ns - at) > 0.40 * 4 * SEC);
	CHECK(here->contender.figures.fallbacks == 0 && there->contender.figures.fallbacks == 0);
}

/* The grant's kernel on the other GPU never ends: what it does here is charged as ever. */
static void a_stuck_sibling_makes_nothing_free(void)
{
	begin(26);
	card_init(&other_card, 27);
	struct share *here = add(50, &busy);
	add(50, &busy);
	struct share *there = &shares[CARD_PROGRAMS], *neighbour = &shares[CARD_PROGRAMS + 1];
	there->settings = neighbour->settings = (struct turns_settings){.percent = 50};
	there->program = neighbour->program = busy;
	there->program.never_ends = true;
	turns_add(&other_card.turns, &there->contender, &there->settings, &here->contender, card.now);
	turns_add(&other_card.turns, &neighbour->contender, &neighbour->settings, NULL, card.now);
	card_add(&other_card, &there->program, &there->contender);
	card_add(&other_card, &neighbour->program, &neighbour->contender);
	cards_run(&card, &other_card, 2 * SEC);
	card_note(&card, before);
	cards_run(&card, &other_card, 2 * SEC);
	NEAR(got(0), 50, 2);
}

static void lies_hurt_nobody_else(unsigned seed)
{
	begin(seed);
	add(50, &busy);
	add(50, &busy);
	card_run(&card, 100 * MS);
	struct program *liar = &shares[0].program;
	card_note(&card, before);
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
		card_run(&card, 1 * MS);
	}
	CHECK(busy_part(1, 1 * SEC) > 20);
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
	a_kernel_that_never_ends_keeps_nobody_out();
	one_stopped_in_its_window_keeps_nobody_out();
	alone_is_left_alone();
	a_change_counts_from_the_next_window();
	what_was_used_as_elastic_is_not_owed_as_hard();
	nobody_saves_up_what_it_did_not_use();
	one_that_waits_in_the_background_changes_nothing();
	a_regular_latency_slice_lets_long_quanta_run();
	what_hard_owes_is_paid_while_it_sleeps();
	a_slice_that_is_slow_to_end_is_known_for_it();
	a_stuck_sibling_makes_nothing_free();
	several_processes_are_one_slice();
	a_grant_holds_its_gpus_together();
	for (unsigned seed = 0; seed < 5; seed++)
		lies_hurt_nobody_else(seed);
	return 0;
}
