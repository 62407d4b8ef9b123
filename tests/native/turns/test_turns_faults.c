/* Turns where something goes wrong, and where a grant has several processes or GPUs. */
#include "shares.h"

static struct card other_card;

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
	a_kernel_that_never_ends_keeps_nobody_out();
	one_stopped_in_its_window_keeps_nobody_out();
	alone_is_left_alone();
	a_slice_that_is_slow_to_end_is_known_for_it();
	a_stuck_sibling_makes_nothing_free();
	several_processes_are_one_slice();
	a_grant_holds_its_gpus_together();
	for (unsigned seed = 0; seed < 5; seed++)
		lies_hurt_nobody_else(seed);
	return 0;
}
