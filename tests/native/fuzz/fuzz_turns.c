/* The whole of the turns over pages that their processes write as they like.
 *
 * Two GPUs. On each two honest contenders, always busy, whose GPU finishes at once what has credit; and
 * seven liars that come and go, in groups or not, with any settings, whose work pages the input writes.
 * The input is a list of steps: pass time and look, lie, add, remove, change, enter, leave.
 *
 * After each look:
 *   - every number is in its range, and the next look is due later, within a millisecond;
 *   - those that hold are the holder and its companions, and only those on a GPU where some take turns;
 *   - credit is what was allowed: open only without turns or if exempt, none for a process that is
 *     unheld, at most ALIQUOT_AHEAD beyond what is done for the others, and for one with work that is
 *     out nothing;
 *   - no honest contender waits longer than the windows and bounds of all others;
 *   - the used times of the two honest contenders of a GPU differ by less than a few rounds: whatever
 *     the liars write, what they leave is divided between the honest by their weights.
 */
#include "turns_work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS 2u
#define HONEST 2u /* on each GPU */
#define LIARS 7u
#define WORKERS 2u
#define MEMBERS (GPUS * HONEST + LIARS)
#define TICKS_MOST 2000u
#define STEP_MOST_NS (20 * MILLISECOND_NS)
#define DEPTH (2 * ALIQUOT_AHEAD)
/* Six others on a GPU at most, each with a window of two rounds of 7 * 5 ms and a bound of 1 s. */
#define WAIT_MOST_NS (12 * SECOND_NS)

#define MUST(condition)                                                                            \
	do {                                                                                           \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
			abort();                                                                               \
		}                                                                                          \
	} while (0)

struct member {
	bool is_in, honest;
	struct contender contender;
	struct turns_settings settings;
	bool has[WORKERS];
	struct worker workers[WORKERS];
	struct aliquot_work_slice work[WORKERS];
	struct aliquot_credit_slice credit[WORKERS];
	uint64_t waits_since; /* an honest one that does not hold; 0: it does */
};

static struct turns gpus[GPUS];
static struct member members[MEMBERS];
static uint64_t now;
static bool leaps; /* the clock leaped: only what needs no clock is checked */

struct input {
	const uint8_t *at, *end;
};

static uint8_t take(struct input *input)
{
	return input->at < input->end ? *input->at++ : 0;
}

/* --- the honest ------------------------------------------------------------------------------- */

/* Finishes what has credit, and fills the queue. */
static void work_honestly(struct member *member)
{
	struct aliquot_work_slice *work = &member->work[0];
	uint64_t credit = atomic_load(&member->credit[0].credit), closed = atomic_load(&work->closed);
	uint64_t done = credit < closed ? credit : closed;
	if (done > atomic_load(&work->marks[0].done))
		atomic_store(&work->marks[0].done, done);
	done = atomic_load(&work->marks[0].done);
	while (closed < done + DEPTH) {
		closed++;
		atomic_store(&work->quanta[closed % ALIQUOT_QUANTA].marks, (uint32_t)closed);
		atomic_store(&work->quanta[closed % ALIQUOT_QUANTA].expected_ns, 500000);
		atomic_store(&work->launches, closed);
		atomic_store(&work->opened, closed);
		atomic_store(&work->closed, closed);
	}
}

/* --- the liars -------------------------------------------------------------------------------- */

static uint64_t lie_of(struct input *input, const struct member *liar, unsigned which)
{
	uint64_t by = take(input);
	const struct aliquot_work_slice *work = &liar->work[which];
	switch (take(input) % 10) {
	case 0:
		return by;
	case 1:
		return by << take(input) % 64;
	case 2:
		return UINT64_MAX - by;
	case 3:
		return ALIQUOT_OPEN - by;
	case 4:
		return ALIQUOT_QUANTUM_LAST + by - 128;
	case 5:
		return atomic_load(&work->closed) + by;
	case 6:
		return atomic_load(&work->closed) - by;
	case 7:
		return atomic_load(&work->closed) + 2048 + by;
	case 8:
		return atomic_load(&liar->credit[which].credit) + by;
	default:
		return atomic_load(&work->opened) + by;
	}
}

static void lie(struct input *input)
{
	struct member *liar = &members[GPUS * HONEST + take(input) % LIARS];
	unsigned which = take(input) % WORKERS, word = take(input);
	struct aliquot_work_slice *work = &liar->work[which];
	uint64_t value = lie_of(input, liar, which);
	uint32_t index = take(input) * 8u % ALIQUOT_QUANTA;
	switch (word % 12) {
	case 0:
		atomic_store(&work->opened, value);
		break;
	case 1:
		atomic_store(&work->closed, value);
		break;
	case 2:
	case 3: /* as a process does that launches */
		atomic_store(&work->opened, value);
		atomic_store(&work->closed, value);
		break;
	case 4:
		atomic_store(&work->launches, value);
		break;
	case 5:
		atomic_store(&work->gates, (uint32_t)value % 5);
		break;
	case 6:
	case 7:
		atomic_store(&work->gates, ALIQUOT_GATES_WORK);
		break;
	case 8:
		atomic_store(&work->marks_end, (uint32_t)value);
		break;
	case 9:
		atomic_store(&work->marks[word / 12].done, value);
		break;
	case 10:
		for (uint32_t i = 0; i < 64; i++)
			atomic_store(&work->quanta[(index + i) % ALIQUOT_QUANTA].marks, (uint32_t)value);
		break;
	default:
		for (uint32_t i = 0; i < 64; i++)
			atomic_store(&work->quanta[(index + i) % ALIQUOT_QUANTA].expected_ns, (uint32_t)value);
	}
}

/* --- members ---------------------------------------------------------------------------------- */

static struct turns_settings settings_from(struct input *input)
{
	uint8_t bits = take(input);
	return (struct turns_settings){
		.percent = take(input) % 101,
		.policy = bits & 1 ? ALIQUOT_HARD : ALIQUOT_ELASTIC,
		.priority = (enum aliquot_priority)(bits / 2 % 3),
		.mps = bits & 64,
		.grant_state = bits & 128 ? (enum aliquot_grant_state)(bits / 8 % 3) : ALIQUOT_GRANT_ACTIVE,
	};
}

static void enter(struct member *member, unsigned which)
{
	memset(&member->work[which], 0, sizeof(member->work[which]));
	memset(&member->credit[which], 0, sizeof(member->credit[which]));
	atomic_store(&member->work[which].marks_end, 1);
	if (member->honest)
		atomic_store(&member->work[which].gates, ALIQUOT_GATES_WORK);
	turns_enter(&member->contender, &member->workers[which], &member->work[which],
	            &member->credit[which], now);
	member->has[which] = true;
}

static void leave(struct member *member, unsigned which)
{
	turns_leave(&member->contender, &member->workers[which]);
	member->has[which] = false;
	MUST(atomic_load(&member->credit[which].credit) == ALIQUOT_OPEN);
}

static void add(struct member *member, struct turns *turns, struct contender *joint)
{
	turns_add(turns, &member->contender, &member->settings, joint, now);
	member->is_in = true;
	member->waits_since = now;
}

static void remove_member(struct member *member)
{
	for (unsigned i = 0; i < WORKERS; i++)
		if (member->has[i])
			leave(member, i);
	turns_remove(&member->contender);
	member->is_in = false;
}

static void change(struct input *input, unsigned how)
{
	struct member *liar = &members[GPUS * HONEST + take(input) % LIARS];
	unsigned which = take(input);
	switch (how) {
	case 0:
		if (liar->is_in) {
			remove_member(liar);
		} else {
			const struct member *with = &members[GPUS * HONEST + which / 2 % LIARS];
			liar->settings = settings_from(input);
			bool joins = which & 64 && with->is_in;
			if (joins) /* the same for all of a group */
				liar->settings.mps = with->settings.mps;
			add(liar, &gpus[which % GPUS], joins ? (struct contender *)&with->contender : NULL);
			enter(liar, 0);
		}
		break;
	case 1:
		if (liar->is_in) {
			bool mps = liar->settings.mps;
			liar->settings = settings_from(input);
			liar->settings.mps = mps;
			turns_change(&liar->contender, &liar->settings, now);
		}
		break;
	default:
		which %= WORKERS;
		if (!liar->is_in)
			break;
		if (liar->has[which])
			leave(liar, which);
		else
			enter(liar, which);
	}
}

/* --- what must hold --------------------------------------------------------------------------- */

static void check_worker(const struct member *member, unsigned which)
{
	const struct worker *worker = &member->workers[which];
	const struct aliquot_work_view *view = &worker->view;
	const struct contender *contender = &member->contender;
	const struct turns *turns = contender->turns;
	uint64_t credit = atomic_load(&member->credit[which].credit);
	bool active = contender->settings.grant_state == ALIQUOT_GRANT_ACTIVE;
	MUST(view->done <= view->closed && view->closed <= view->opened);
	MUST(view->opened <= view->closed + 1 && view->closed <= ALIQUOT_QUANTUM_LAST);
	MUST(isfinite(worker->stretch) && worker->stretch >= 1 && worker->stretch <= 16);
	MUST(worker->credit == credit);
	MUST(credit == ALIQUOT_OPEN || credit <= ALIQUOT_QUANTUM_LAST + ALIQUOT_AHEAD);
	if (!active) {
		MUST(credit == ALIQUOT_OPEN);
	} else if (work_is_unheld(worker)) {
		MUST(credit <= view->done);
	} else if (turns->contended && contender->state != CONTENDER_EXEMPT) {
		MUST(credit <= view->done + ALIQUOT_AHEAD);
		if (contender->state == CONTENDER_OUT)
			MUST(credit <= view->done + (contender->pending ? 0 : 2));
	}
}

static void check_contender(const struct contender *contender)
{
	const struct turns *turns = contender->turns;
	MUST(isfinite(contender->used) && isfinite(contender->tokens) && contender->used >= 0);
	MUST(contender->weight >= 1 && contender->weight <= 100);
	if (contender->state != CONTENDER_HOLDS)
		return;
	MUST(turns->contended && turns->holder);
	MUST(contender == turns->holder || contender_is_companion(contender, turns->holder));
}

static void check_waits(struct member *member)
{
	const struct contender *contender = &member->contender;
	MUST(contender->figures.fallbacks == 0);
	if (contender->state == CONTENDER_HOLDS || !contender->pending || !contender->turns->contended)
		member->waits_since = now;
	MUST(now - member->waits_since <= WAIT_MOST_NS);
}

/* Two honest ones: each is ahead by a window of two rounds and by late looks at most. */
static void check_shares(const struct member *one, const struct member *other)
{
	double apart = fabs(one->contender.used - other->contender.used);
	double one_weight = one->contender.weight, other_weight = other->contender.weight;
	double least = one_weight < other_weight ? one_weight : other_weight;
	double round = (double)one->contender.turns->round_ns;
	MUST(apart <= 6 * round / least + 6 * (double)STEP_MOST_NS / least);
}

static void check(const struct turns *turns, uint64_t next)
{
	MUST(turns->contended ? next > now && next <= now + MILLISECOND_NS : next == TURNS_NEVER);
	MUST(!turns->holder || turns->holder->state == CONTENDER_HOLDS);
	EACH (contender, turns)
		check_contender(contender);
	for (unsigned i = 0; i < MEMBERS; i++)
		for (unsigned which = 0; which < WORKERS; which++)
			if (members[i].is_in && members[i].has[which] && members[i].contender.turns == turns)
				check_worker(&members[i], which);
}

static void tick(struct input *input)
{
	static const uint64_t steps[] = {20000, 50000, 100000, 200000, 500000, 1000000, 5000000};
	uint8_t byte = take(input);
	uint64_t step = steps[byte % 7] + byte * 1000;
	if (byte == 255) {
		step = (uint64_t)take(input) << (take(input) % 48);
		leaps |= step > STEP_MOST_NS;
	}
	now += step;
	for (unsigned g = 0; g < GPUS; g++) {
		for (unsigned h = 0; h < HONEST; h++)
			work_honestly(&members[g * HONEST + h]);
		check(&gpus[g], turns_look(&gpus[g], now));
	}
	for (unsigned g = 0; !leaps && g < GPUS; g++) {
		for (unsigned h = 0; h < HONEST; h++)
			check_waits(&members[g * HONEST + h]);
		check_shares(&members[g * HONEST], &members[g * HONEST + 1]);
	}
}

static void begin(struct input *input)
{
	memset(members, 0, sizeof(members));
	now = 1000 * SECOND_NS;
	leaps = false;
	for (unsigned g = 0; g < GPUS; g++)
		turns_init(&gpus[g], now);
	for (unsigned i = 0; i < GPUS * HONEST; i++) {
		members[i].honest = true;
		members[i].settings = (struct turns_settings){.percent = 5 + take(input) % 46};
		add(&members[i], &gpus[i / HONEST], NULL);
		enter(&members[i], 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {data, data + size};
	unsigned ticks = 0;
	begin(&input);
	while (input.at < input.end && ticks < TICKS_MOST) {
		uint8_t what = take(&input);
		switch (what % 8) {
		case 0:
		case 1:
			lie(&input);
			break;
		case 2:
			change(&input, what / 8 % 3);
			break;
		default:
			for (unsigned i = 0; i <= what / 8u; i++, ticks++)
				tick(&input);
		}
	}
	for (unsigned i = 0; i < MEMBERS; i++)
		if (members[i].is_in)
			remove_member(&members[i]);
	MUST(!gpus[0].contenders && !gpus[1].contenders && !gpus[0].holder && !gpus[1].holder);
	return 0;
}
