/* Contenders whose grant is not taken, on a GPU on paper: their gates stand open whatever happens,
 * the others have what they leave, and turns go on when they come back. */
#include "shares.h"

#define SEEDS 24u

static struct card other_card;

static void hold(struct share *share, enum aliquot_hold hold)
{
	share->settings.hold = hold;
	turns_change(&share->contender, &share->settings, card.now);
	card.look_at = card.now;
}

static bool is_open(const struct program *program)
{
	return atomic_load(&program->credit.credit) == ALIQUOT_OPEN &&
	       atomic_load(&program->credit.pace) == ALIQUOT_ALONE &&
	       !atomic_load(&program->credit.ring);
}

static void a_hard_one_has_it_all_while_it_is_open(void)
{
	static const enum aliquot_hold holds[] = {ALIQUOT_HOLD_OPEN, ALIQUOT_HOLD_PARKED};
	for (unsigned i = 0; i < 2; i++) {
		begin(31 + i);
		struct share *hard = add_as((struct turns_settings){.percent = 1, .policy = ALIQUOT_HARD},
		                            &busy);
		card_run(&card, 500 * MS);
		run_noted(2 * SEC);
		NEAR(busy_part(0, 2 * SEC), 1, 0.5);
		CHECK(!is_open(&hard->program));
		hold(hard, holds[i]);
		CHECK(is_open(&hard->program)); /* at once, not at the next look */
		uint64_t looks = card.looks;
		run_noted(1 * SEC);
		CHECK(busy_part(0, 1 * SEC) > 99);
		CHECK(is_open(&hard->program));
		CHECK(card.looks <= looks + 1);
		CHECK(hard->contender.figures.used_ns == used_before[0]); /* nothing is charged */
		hold(hard, ALIQUOT_HOLD_TAKEN);
		card_run(&card, 100 * MS);
		run_noted(2 * SEC);
		NEAR(busy_part(0, 2 * SEC), 1, 0.5);
	}
}

static void the_others_have_what_it_leaves(void)
{
	begin(33);
	struct share *away = add(50, &busy);
	add(30, &busy);
	add(20, &busy);
	card_run(&card, 500 * MS);
	hold(away, ALIQUOT_HOLD_OPEN);
	away->program.stopped = true; /* as the driver stops it */
	card_run(&card, 60 * MS);
	hold(away, ALIQUOT_HOLD_PARKED);
	run_noted(2 * SEC);
	NEAR(said(1), 60, 0.7);
	NEAR(said(2), 40, 0.7);
	CHECK(is_open(&away->program));
	hold(away, ALIQUOT_HOLD_OPEN);
	away->program.stopped = false;
	hold(away, ALIQUOT_HOLD_TAKEN);
	card_run(&card, 100 * MS);
	run_noted(3 * SEC);
	NEAR(said(0), 50, 1); /* and no more than that: nothing was saved up */
	CHECK(all_fallbacks() == 0);
}

static void one_is_alone_beside_those_that_are_not_taken(void)
{
	begin(34);
	add(50, &busy);
	struct share *away = add(50, &busy);
	card_run(&card, 300 * MS);
	CHECK(card.turns.contended);
	hold(away, ALIQUOT_HOLD_PARKED);
	away->program.stopped = true;
	card_run(&card, 60 * MS);
	CHECK(!card.turns.contended && is_open(&shares[0].program));
	uint64_t looks = card.looks;
	run_noted(1 * SEC);
	CHECK(card.looks == looks); /* nobody looks, and it costs nobody anything */
	CHECK(busy_part(0, 1 * SEC) > 99);
}

static void weights_are_those_of_who_has_something(void)
{
	begin(35);
	add(0, &busy);
	add(0, &busy);
	struct share *third = add(40, &busy);
	NEAR(shares[0].contender.weight, 30, 0.01);
	hold(third, ALIQUOT_HOLD_OPEN);
	NEAR(shares[0].contender.weight, 30, 0.01);
	NEAR(third->contender.weight, 40, 0.01);
	hold(third, ALIQUOT_HOLD_PARKED);
	NEAR(shares[0].contender.weight, 50, 0.01);
	NEAR(third->contender.weight, 0, 0.01);
	third->settings.percent = 60; /* resized while it is parked */
	hold(third, ALIQUOT_HOLD_PARKED);
	NEAR(shares[0].contender.weight, 50, 0.01);
	CHECK(is_open(&third->program));
	hold(third, ALIQUOT_HOLD_TAKEN);
	NEAR(shares[0].contender.weight, 20, 0.01);
	NEAR(third->contender.weight, 60, 0.01);
}

/* Two take turns; the third, with work in hand and its gates open, comes in: it has come back, or the
 * arbiter has, which finds grants one after the other. */
static void who_comes_with_open_gates_takes_turns(bool anew)
{
	begin(36);
	add(30, &busy);
	add(30, &busy);
	struct share *third = add(40, &busy);
	hold(third, ALIQUOT_HOLD_OPEN);
	card_run(&card, 300 * MS);
	CHECK(card.turns.contended && is_open(&third->program));
	if (anew) {
		turns_leave(&third->contender, &third->program.worker);
		turns_remove(&third->contender);
		third->settings.hold = ALIQUOT_HOLD_TAKEN;
		turns_add(&card.turns, &third->contender, &third->settings, NULL, card.now);
		turns_enter(&third->contender, &third->program.worker, &third->program.work,
		            &third->program.credit, card.now);
		card.look_at = card.now;
	} else {
		hold(third, ALIQUOT_HOLD_TAKEN);
	}
	card_run(&card, 100 * MS);
	CHECK(atomic_load(&third->program.credit.credit) < ALIQUOT_OPEN);
	if (anew) /* a new arbiter knows of nobody what it had */
		card_run(&card, 1 * SEC);
	run_noted(3 * SEC);
	NEAR(said(2), 40, 1);
	NEAR(got(2), 40, 2);
	CHECK(all_fallbacks() == 0);
}

static void a_process_that_comes_while_it_is_open_has_open_gates(void)
{
	static struct program second;
	begin(37);
	struct share *hard = add_as((struct turns_settings){.percent = 10, .policy = ALIQUOT_HARD},
	                            &busy);
	add(50, &busy);
	card_run(&card, 100 * MS);
	hold(hard, ALIQUOT_HOLD_OPEN);
	second = busy;
	card_add(&card, &second, &hard->contender);
	/* A page on which an earlier arbiter left its gates shut. */
	turns_leave(&hard->contender, &second.worker);
	atomic_store(&second.credit.credit, 0);
	atomic_store(&second.credit.pace, ALIQUOT_TURNS);
	turns_enter(&hard->contender, &second.worker, &second.work, &second.credit, card.now);
	CHECK(is_open(&second));
	card_run(&card, 300 * MS);
	CHECK(is_open(&second) && is_open(&hard->program));
	hold(hard, ALIQUOT_HOLD_TAKEN);
	card_run(&card, 300 * MS);
	run_noted(2 * SEC);
	NEAR(said(0), 10, 1);
}

/* Kernels on two GPUs that wait for each other, a neighbour on each, and a grant that goes and comes
 * at any moment. */
static void a_grant_on_two_gpus_goes_and_comes(unsigned seed)
{
	begin(seed);
	card_init(&other_card, seed + 1);
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
	for (unsigned i = 0; i < 12; i++) {
		cards_run(&card, &other_card, 20 * MS + seed * 137 * US + i * 1731 * US);
		enum aliquot_hold to = i % 2 ? ALIQUOT_HOLD_TAKEN : ALIQUOT_HOLD_OPEN;
		here->settings.hold = there->settings.hold = to;
		turns_change(&here->contender, &here->settings, card.now);
		turns_change(&there->contender, &there->settings, other_card.now);
		card.look_at = other_card.look_at = card.now;
		if (to == ALIQUOT_HOLD_OPEN) {
			cards_run(&card, &other_card, 15 * MS);
			CHECK(is_open(&here->program) && is_open(&there->program));
		}
	}
	cards_run(&card, &other_card, 300 * MS);
	uint64_t done = here->program.work.marks[0].done, at = neighbour->program.gpu_ns;
	cards_run(&card, &other_card, 2 * SEC);
	CHECK(here->program.work.marks[0].done - done > 1250);
	CHECK((double)(neighbour->program.gpu_ns - at) > 0.40 * 2 * SEC);
	CHECK(!here->contender.figures.fallbacks && !there->contender.figures.fallbacks);
}

static unsigned drawn;

static unsigned draw(unsigned below)
{
	drawn = drawn * 1664525u + 1013904223u;
	return (drawn >> 8) % below;
}

static void check_all(void)
{
	unsigned listed = 0, aside = 0, taken = 0;
	for (const struct contender *one = card.turns.contenders; one; one = one->next)
		listed++;
	for (const struct contender *one = card.turns.aside; one; one = one->next)
		aside++;
	for (unsigned i = 0; i < card.count; i++) {
		const struct share *share = &shares[i];
		taken += share->settings.hold == ALIQUOT_HOLD_TAKEN;
		if (share->settings.hold == ALIQUOT_HOLD_TAKEN)
			continue;
		CHECK(is_open(&share->program));
		CHECK(card.turns.holder != &share->contender);
		CHECK(share->contender.state == CONTENDER_OUT && !share->contender.waits_at);
		CHECK(!turns_backlog(&share->contender));
		CHECK((share->settings.hold == ALIQUOT_HOLD_PARKED) == (share->contender.weight == 0));
	}
	CHECK(listed == taken && listed + aside == card.count);
}

/* Any settings, any changes, any moments; when all are taken again the shares hold. */
static void whatever_is_done(unsigned seed)
{
	static const struct program *kinds[] = {&busy, &syncs, &small, &request};
	static const enum aliquot_priority priorities[] = {ALIQUOT_NORMAL, ALIQUOT_LATENCY,
	                                                   ALIQUOT_BACKGROUND};
	drawn = seed * 7919u + 1;
	begin(seed);
	for (unsigned i = 0; i < 4; i++)
		add_as((struct turns_settings){.percent = 25,
		                               .policy = draw(4) ? ALIQUOT_ELASTIC : ALIQUOT_HARD,
		                               .priority = priorities[draw(3)]},
		       kinds[draw(4)]);
	for (unsigned step = 0; step < 120; step++) {
		struct share *share = &shares[draw(card.count)];
		if (draw(5)) {
			hold(share, (enum aliquot_hold)draw(3));
		} else {
			share->settings.percent = 5 + draw(20);
			hold(share, share->settings.hold);
		}
		check_all();
		card_run(&card, draw(20 * MS / US) * US);
		check_all();
	}
	for (unsigned i = 0; i < card.count; i++) {
		struct program *program = &shares[i].program;
		program->quantum_ns = busy.quantum_ns;
		program->depth = busy.depth;
		program->burst = program->in_burst = 0;
		program->thinks_until = 0;
		shares[i].settings = (struct turns_settings){.percent = 25};
		hold(&shares[i], ALIQUOT_HOLD_OPEN); /* who was late too often comes back with nothing */
		hold(&shares[i], ALIQUOT_HOLD_TAKEN);
	}
	card_run(&card, 1 * SEC);
	run_noted(2 * SEC);
	for (unsigned i = 0; i < card.count; i++)
		NEAR(said(i), 25, 1);
}

int main(void)
{
	a_hard_one_has_it_all_while_it_is_open();
	the_others_have_what_it_leaves();
	one_is_alone_beside_those_that_are_not_taken();
	weights_are_those_of_who_has_something();
	who_comes_with_open_gates_takes_turns(false);
	who_comes_with_open_gates_takes_turns(true);
	a_process_that_comes_while_it_is_open_has_open_gates();
	for (unsigned seed = 40; seed < 52; seed++)
		a_grant_on_two_gpus_goes_and_comes(seed);
	for (unsigned seed = 0; seed < SEEDS; seed++)
		whatever_is_done(seed);
	return 0;
}
