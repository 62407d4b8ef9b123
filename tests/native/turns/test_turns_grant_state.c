/* Contenders whose grant is not active, on a simulated GPU: their gates are open whatever happens, the
 * others share their time, and they take turns again when the grant is active again. */
#include "shares.h"

#define SEEDS 24u

static struct simulated_gpu other_gpu;

static void set_state(struct share *share, enum aliquot_grant_state state)
{
	share->settings.grant_state = state;
	turns_change(&share->contender, &share->settings, gpu.now);
	gpu.look_at = gpu.now;
}

static bool is_open(const struct program *program)
{
	return atomic_load(&program->credit.credit) == ALIQUOT_OPEN &&
	       atomic_load(&program->credit.pace) == ALIQUOT_ALONE &&
	       !atomic_load(&program->credit.ring);
}

static void a_hard_slice_is_unlimited_while_not_active(void)
{
	static const enum aliquot_grant_state states[] = {ALIQUOT_GRANT_SWITCHING,
	                                                  ALIQUOT_GRANT_PARKED};
	for (unsigned i = 0; i < 2; i++) {
		begin_test(31 + i);
		struct share *hard = add_share_as((struct turns_settings){.percent = 1,
		                                                          .policy = ALIQUOT_HARD},
		                                  &busy);
		simulated_gpu_run(&gpu, 500 * MS);
		run_noted(2 * SEC);
		NEAR(busy_part(0, 2 * SEC), 1, 0.5);
		CHECK(!is_open(&hard->program));
		set_state(hard, states[i]);
		CHECK(is_open(&hard->program)); /* at once, not at the next look */
		uint64_t looks = gpu.looks;
		run_noted(1 * SEC);
		CHECK(busy_part(0, 1 * SEC) > 99);
		CHECK(is_open(&hard->program));
		CHECK(gpu.looks <= looks + 1);
		CHECK(hard->contender.figures.used_ns == used_before[0]); /* nothing is charged */
		set_state(hard, ALIQUOT_GRANT_ACTIVE);
		simulated_gpu_run(&gpu, 100 * MS);
		run_noted(2 * SEC);
		NEAR(busy_part(0, 2 * SEC), 1, 0.5);
	}
}

static void others_share_the_time_of_a_parked_slice(void)
{
	begin_test(33);
	struct share *away = add_share(50, &busy);
	add_share(30, &busy);
	add_share(20, &busy);
	simulated_gpu_run(&gpu, 500 * MS);
	set_state(away, ALIQUOT_GRANT_SWITCHING);
	away->program.stopped = true; /* as the driver does when it freezes it */
	simulated_gpu_run(&gpu, 60 * MS);
	set_state(away, ALIQUOT_GRANT_PARKED);
	run_noted(2 * SEC);
	NEAR(said(1), 60, 0.7);
	NEAR(said(2), 40, 0.7);
	CHECK(is_open(&away->program));
	set_state(away, ALIQUOT_GRANT_SWITCHING);
	away->program.stopped = false;
	set_state(away, ALIQUOT_GRANT_ACTIVE);
	simulated_gpu_run(&gpu, 100 * MS);
	run_noted(3 * SEC);
	NEAR(said(0), 50, 1); /* and no more: unused time is not saved up */
	CHECK(all_fallbacks() == 0);
}

static void a_slice_is_alone_if_the_others_are_not_active(void)
{
	begin_test(34);
	add_share(50, &busy);
	struct share *away = add_share(50, &busy);
	simulated_gpu_run(&gpu, 300 * MS);
	CHECK(gpu.turns.contended);
	set_state(away, ALIQUOT_GRANT_PARKED);
	away->program.stopped = true;
	simulated_gpu_run(&gpu, 60 * MS);
	CHECK(!gpu.turns.contended && is_open(&shares[0].program));
	uint64_t looks = gpu.looks;
	run_noted(1 * SEC);
	CHECK(gpu.looks == looks); /* it is not observed, and costs nothing */
	CHECK(busy_part(0, 1 * SEC) > 99);
}

static void parked_slices_have_no_weight(void)
{
	begin_test(35);
	add_share(0, &busy);
	add_share(0, &busy);
	struct share *third = add_share(40, &busy);
	NEAR(shares[0].contender.weight, 30, 0.01);
	set_state(third, ALIQUOT_GRANT_SWITCHING);
	NEAR(shares[0].contender.weight, 30, 0.01);
	NEAR(third->contender.weight, 40, 0.01);
	set_state(third, ALIQUOT_GRANT_PARKED);
	NEAR(shares[0].contender.weight, 50, 0.01);
	NEAR(third->contender.weight, 0, 0.01);
	third->settings.percent = 60; /* resized while it is parked */
	set_state(third, ALIQUOT_GRANT_PARKED);
	NEAR(shares[0].contender.weight, 50, 0.01);
	CHECK(is_open(&third->program));
	set_state(third, ALIQUOT_GRANT_ACTIVE);
	NEAR(shares[0].contender.weight, 20, 0.01);
	NEAR(third->contender.weight, 60, 0.01);
}

/* Two take turns; a third with unfinished work and open gates joins them: its grant is active again, or
 * the arbiter has restarted and recovers grants one after the other. */
static void a_returning_slice_takes_turns(bool anew)
{
	begin_test(36);
	add_share(30, &busy);
	add_share(30, &busy);
	struct share *third = add_share(40, &busy);
	set_state(third, ALIQUOT_GRANT_SWITCHING);
	simulated_gpu_run(&gpu, 300 * MS);
	CHECK(gpu.turns.contended && is_open(&third->program));
	if (anew) {
		turns_leave(&third->contender, &third->program.worker);
		turns_remove(&third->contender);
		third->settings.grant_state = ALIQUOT_GRANT_ACTIVE;
		turns_add(&gpu.turns, &third->contender, &third->settings, NULL, gpu.now);
		turns_enter(&third->contender, &third->program.worker, &third->program.work,
		            &third->program.credit, gpu.now);
		gpu.look_at = gpu.now;
	} else {
		set_state(third, ALIQUOT_GRANT_ACTIVE);
	}
	simulated_gpu_run(&gpu, 100 * MS);
	CHECK(atomic_load(&third->program.credit.credit) < ALIQUOT_OPEN);
	if (anew) /* a new arbiter does not know what each one used */
		simulated_gpu_run(&gpu, 1 * SEC);
	run_noted(3 * SEC);
	NEAR(said(2), 40, 1);
	NEAR(got(2), 40, 2);
	CHECK(all_fallbacks() == 0);
}

static void a_process_that_joins_a_switching_grant_has_open_gates(void)
{
	static struct program second;
	begin_test(37);
	struct share *hard = add_share_as((struct turns_settings){.percent = 10,
	                                                          .policy = ALIQUOT_HARD},
	                                  &busy);
	add_share(50, &busy);
	simulated_gpu_run(&gpu, 100 * MS);
	set_state(hard, ALIQUOT_GRANT_SWITCHING);
	second = busy;
	simulated_gpu_add(&gpu, &second, &hard->contender);
	/* A page on which an earlier arbiter left the gates closed. */
	turns_leave(&hard->contender, &second.worker);
	atomic_store(&second.credit.credit, 0);
	atomic_store(&second.credit.pace, ALIQUOT_TURNS);
	turns_enter(&hard->contender, &second.worker, &second.work, &second.credit, gpu.now);
	CHECK(is_open(&second));
	simulated_gpu_run(&gpu, 300 * MS);
	CHECK(is_open(&second) && is_open(&hard->program));
	set_state(hard, ALIQUOT_GRANT_ACTIVE);
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(2 * SEC);
	NEAR(said(0), 10, 1);
}

/* Kernels on two GPUs that wait for each other, a neighbour on each, and a grant that switches at any
 * moment. */
static void a_grant_on_two_gpus_switches_at_any_moment(unsigned seed)
{
	begin_test(seed);
	simulated_gpu_init(&other_gpu, seed + 1);
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
	for (unsigned i = 0; i < 12; i++) {
		simulated_gpus_run(&gpu, &other_gpu, 20 * MS + seed * 137 * US + i * 1731 * US);
		enum aliquot_grant_state to = i % 2 ? ALIQUOT_GRANT_ACTIVE : ALIQUOT_GRANT_SWITCHING;
		here->settings.grant_state = there->settings.grant_state = to;
		turns_change(&here->contender, &here->settings, gpu.now);
		turns_change(&there->contender, &there->settings, other_gpu.now);
		gpu.look_at = other_gpu.look_at = gpu.now;
		if (to == ALIQUOT_GRANT_SWITCHING) {
			simulated_gpus_run(&gpu, &other_gpu, 15 * MS);
			CHECK(is_open(&here->program) && is_open(&there->program));
		}
	}
	simulated_gpus_run(&gpu, &other_gpu, 300 * MS);
	uint64_t done = here->program.work.marks[0].done, at = neighbour->program.gpu_ns;
	simulated_gpus_run(&gpu, &other_gpu, 2 * SEC);
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
	unsigned listed = 0, excluded = 0, active = 0;
	for (const struct contender *one = gpu.turns.contenders; one; one = one->next)
		listed++;
	for (const struct contender *one = gpu.turns.excluded; one; one = one->next)
		excluded++;
	for (unsigned i = 0; i < gpu.count; i++) {
		const struct share *share = &shares[i];
		active += share->settings.grant_state == ALIQUOT_GRANT_ACTIVE;
		if (share->settings.grant_state == ALIQUOT_GRANT_ACTIVE)
			continue;
		CHECK(is_open(&share->program));
		CHECK(gpu.turns.holder != &share->contender);
		CHECK(share->contender.state == CONTENDER_OUT && !share->contender.waits_at);
		CHECK(!turns_backlog(&share->contender));
		CHECK((share->settings.grant_state == ALIQUOT_GRANT_PARKED) ==
		      (share->contender.weight == 0));
	}
	CHECK(listed == active && listed + excluded == gpu.count);
}

/* Any settings, any changes, at any moment; when all are active again the shares hold. */
static void random_settings_and_states_keep_the_invariants(unsigned seed)
{
	static const struct program *kinds[] = {&busy, &syncs, &small, &request};
	static const enum aliquot_priority priorities[] = {ALIQUOT_NORMAL, ALIQUOT_LATENCY,
	                                                   ALIQUOT_BACKGROUND};
	drawn = seed * 7919u + 1;
	begin_test(seed);
	for (unsigned i = 0; i < 4; i++)
		add_share_as((struct turns_settings){.percent = 25,
		                                     .policy = draw(4) ? ALIQUOT_ELASTIC : ALIQUOT_HARD,
		                                     .priority = priorities[draw(3)]},
		             kinds[draw(4)]);
	for (unsigned step = 0; step < 120; step++) {
		struct share *share = &shares[draw(gpu.count)];
		if (draw(5)) {
			set_state(share, (enum aliquot_grant_state)draw(3));
		} else {
			share->settings.percent = 5 + draw(20);
			set_state(share, share->settings.grant_state);
		}
		check_all();
		simulated_gpu_run(&gpu, draw(20 * MS / US) * US);
		check_all();
	}
	for (unsigned i = 0; i < gpu.count; i++) {
		struct program *program = &shares[i].program;
		program->quantum_ns = busy.quantum_ns;
		program->depth = busy.depth;
		program->burst = program->in_burst = 0;
		program->thinks_until = 0;
		shares[i].settings = (struct turns_settings){.percent = 25};
		set_state(&shares[i], ALIQUOT_GRANT_SWITCHING); /* resets what an exempt one has used */
		set_state(&shares[i], ALIQUOT_GRANT_ACTIVE);
	}
	simulated_gpu_run(&gpu, 1 * SEC);
	run_noted(2 * SEC);
	for (unsigned i = 0; i < gpu.count; i++)
		NEAR(said(i), 25, 1);
}

int main(void)
{
	a_hard_slice_is_unlimited_while_not_active();
	others_share_the_time_of_a_parked_slice();
	a_slice_is_alone_if_the_others_are_not_active();
	parked_slices_have_no_weight();
	a_returning_slice_takes_turns(false);
	a_returning_slice_takes_turns(true);
	a_process_that_joins_a_switching_grant_has_open_gates();
	for (unsigned seed = 40; seed < 52; seed++)
		a_grant_on_two_gpus_switches_at_any_moment(seed);
	for (unsigned seed = 0; seed < SEEDS; seed++)
		random_settings_and_states_keep_the_invariants(seed);
	return 0;
}
