/* Clients of one MPS server: their kernels run at the same time, and their shares are of progress. */
#include "shares.h"

#include <string.h>

static struct share *add_client(struct turns_settings settings, const struct program *how)
{
	struct share *share = &shares[gpu.count], *first = gpu.count ? &shares[0] : NULL;
	settings.mps = true;
	share->settings = settings;
	share->program = *how;
	share->program.mps = true;
	turns_add(&gpu.turns, &share->contender, &share->settings, first ? &first->contender : NULL,
	          gpu.now);
	simulated_gpu_add(&gpu, &share->program, &share->contender);
	return share;
}

static struct share *add_part(uint32_t percent, const struct program *how)
{
	return add_client((struct turns_settings){.percent = percent}, how);
}

/* The progress of all together, over that of one alone. */
static double together(uint64_t ns)
{
	double sum = 0;
	for (unsigned i = 0; i < gpu.count; i++)
		sum += busy_part(i, ns);
	return sum;
}

static void begin_overlap(unsigned seed, double overlap)
{
	begin_test(seed);
	gpu.overlap = overlap;
}

struct split {
	uint32_t percent;
	double least; /* together */
};

static const struct split splits[] = {{50, 108}, {30, 104}, {10, 100}};

static void two_have_their_shares_of_progress_and_more_together(const struct split *split,
                                                                double greed, double says)
{
	begin_overlap(100, 1.12);
	struct program one = busy, other = busy;
	one.greed = greed;
	one.says = says;
	add_part(split->percent, &one);
	add_part(100 - split->percent, &other);
	simulated_gpu_run(&gpu, 8 * SEC);
	run_noted(10 * SEC);
	printf("%u/%u, greed %.1f, says %.1f: %.2f %% of the progress, together %.1f %%\n",
	       split->percent, 100 - split->percent, greed, says, got(0), together(10 * SEC));
	NEAR(got(0), split->percent, 1);
	NEAR(said(0), split->percent, 1.5);
	CHECK(together(10 * SEC) > (greed == 1 ? split->least : 97));
	CHECK(all_fallbacks() == 0);
}

static void three_have_their_shares_of_progress(void)
{
	static const struct program shorter = {.quantum_ns = 200 * US, .depth = 40};
	begin_overlap(110, 1.2);
	add_part(50, &busy);
	add_part(30, &shorter);
	add_part(20, &busy);
	simulated_gpu_run(&gpu, 6 * SEC);
	run_noted(10 * SEC);
	NEAR(got(0), 50, 1);
	NEAR(got(1), 30, 1);
	NEAR(got(2), 20, 1);
	CHECK(together(10 * SEC) > 108);
}

static void hard_slices_never_overlap(void)
{
	begin_overlap(111, 1.12);
	struct share *hard = add_client((struct turns_settings){.percent = 30, .policy = ALIQUOT_HARD},
	                                &busy);
	struct share *one = add_part(40, &busy), *other = add_part(30, &busy);
	simulated_gpu_run(&gpu, 6 * SEC);
	run_noted(10 * SEC);
	NEAR(busy_part(0, 10 * SEC), 30, 1.5);
	NEAR(got(1) / (got(1) + got(2)), 4.0 / 7, 0.01);
	CHECK(gpu.overlapped_ns > 0);
	CHECK(hard->program.beside_hard_ns + one->program.beside_hard_ns +
	          other->program.beside_hard_ns <
	      100 * MS);
}

/* A stranger to the server takes turns with all of them. */
static void a_soft_slice_beside_clients_has_its_share_of_the_time(void)
{
	begin_overlap(112, 1.12);
	add_part(30, &busy);
	add_part(30, &busy);
	add_share(40, &busy);
	simulated_gpu_run(&gpu, 6 * SEC);
	run_noted(10 * SEC);
	NEAR(busy_part(2, 10 * SEC), 38.5, 2.5);
	NEAR(got(0) / (got(0) + got(1)), 0.5, 0.01);
}

static void one_that_does_not_use_its_share_leaves_it_and_saves_nothing_up(void)
{
	begin_overlap(113, 1.12);
	struct share *one = add_part(50, &busy);
	add_part(50, &busy);
	simulated_gpu_run(&gpu, 6 * SEC);
	one->program.stopped = true;
	simulated_gpu_run(&gpu, 100 * MS);
	run_noted(3 * SEC);
	CHECK(busy_part(1, 3 * SEC) > 96);
	one->program.stopped = false;
	simulated_gpu_run(&gpu, 300 * MS);
	run_noted(3 * SEC);
	NEAR(got(0), 50, 1.5);
}

/* The time for which a process was said to have had the GPU, over the estimates of its quanta then. */
static double learned_factor(const struct share *share)
{
	const struct aliquot_credit_slice *page = &share->program.credit;
	double took = 0, quanta = 0;
	uint32_t end = page->timed, first = end > ALIQUOT_TIMINGS ? end - ALIQUOT_TIMINGS : 0;
	for (uint32_t i = first + 1; i < end; i++) {
		const struct aliquot_timing *a = &page->timings[(i - 1) % ALIQUOT_TIMINGS];
		const struct aliquot_timing *b = &page->timings[i % ALIQUOT_TIMINGS];
		if (b->busy_ns == a->busy_ns)
			continue;
		took += (double)(b->busy_ns - a->busy_ns);
		quanta += (double)(b->quantum - a->quantum);
	}
	return quanta > 0 ? took / (quanta * (double)share->program.quantum_ns) : 0;
}

static void times_are_learned_only_alone_and_in_little_of_the_time(void)
{
	begin_overlap(114, 1.5);
	struct share *one = add_part(50, &busy), *other = add_part(50, &busy);
	simulated_gpu_run(&gpu, 3 * SEC);
	uint64_t measured = one->contender.measured_ns + other->contender.measured_ns;
	double factors = 0;
	unsigned count = 0;
	for (unsigned i = 0; i < 100; i++) {
		simulated_gpu_run(&gpu, 100 * MS);
		double factor = learned_factor(one);
		factors += factor;
		count += factor > 0;
	}
	measured = one->contender.measured_ns + other->contender.measured_ns - measured;
	printf("measured alone in %.2f %% of the time; a quantum takes %.2f of what it does\n",
	       (double)measured / (10.0 * (double)SEC) * 100, factors / count);
	CHECK(measured > 50 * MS);
	CHECK(measured < 400 * MS);
	CHECK(count > 0);
	/* Beside the other it would take 1.33 times as long. */
	NEAR(factors / count, 1, 0.15);
}

/* Whatever comes and goes, nobody waits for ever, and what is left of the GPU is used. */
static void clients_that_come_and_go_always_go_on(unsigned seed)
{
	begin_overlap(200 + seed, 1.12);
	for (unsigned i = 0; i < 4; i++) {
		struct program how = i % 2 ? syncs : busy;
		struct turns_settings settings = {.percent = 10 + 5 * i};
		if (i == 3 && seed % 2)
			settings.policy = ALIQUOT_HARD;
		if (i == 2 && seed % 3 == 0)
			settings.priority = ALIQUOT_LATENCY;
		add_client(settings, &how);
	}
	for (unsigned turn = 0; turn < 12; turn++) {
		uint64_t before_that[4];
		for (unsigned i = 0; i < 4; i++) {
			shares[i].program.stopped = (seed * 7 + turn * (i + 3)) % 5 == 0;
			before_that[i] = shares[i].program.work.marks[0].done;
		}
		simulated_gpu_run(&gpu, 1200 * MS);
		for (unsigned i = 0; i < 4; i++)
			CHECK(shares[i].program.stopped ||
			      shares[i].program.work.marks[0].done > before_that[i]);
		if (turn == 6) {
			struct turns_settings changed = shares[1].settings;
			changed.policy = ALIQUOT_HARD;
			turns_change(&shares[1].contender, &changed, gpu.now);
		}
	}
	CHECK(all_fallbacks() == 0);
	for (unsigned i = 0; i < 4; i++)
		turns_remove(&shares[i].contender);
}

int main(void)
{
	for (unsigned i = 0; i < sizeof(splits) / sizeof(*splits); i++)
		two_have_their_shares_of_progress_and_more_together(&splits[i], 1, 1);
	two_have_their_shares_of_progress_and_more_together(&splits[1], 3, 1);
	two_have_their_shares_of_progress_and_more_together(&splits[1], 1, 0.3);
	three_have_their_shares_of_progress();
	hard_slices_never_overlap();
	a_soft_slice_beside_clients_has_its_share_of_the_time();
	one_that_does_not_use_its_share_leaves_it_and_saves_nothing_up();
	times_are_learned_only_alone_and_in_little_of_the_time();
	for (unsigned seed = 0; seed < 2; seed++)
		clients_that_come_and_go_always_go_on(seed);
	return 0;
}
