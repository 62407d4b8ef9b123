#include "card.h"

#include <string.h>

#define STEP_NS (5 * US)
#define SLICE_NS (1 * MS)
#define SWITCH_NS (150 * US)

static unsigned draw(struct card *card, unsigned below)
{
	card->seed = card->seed * 1664525u + 1013904223u;
	return (card->seed >> 8) % below;
}

void card_init(struct card *card, unsigned seed)
{
	memset(card, 0, sizeof(*card));
	card->now = 1000 * SEC;
	card->seed = seed;
	turns_init(&card->turns, card->now);
}

void card_add(struct card *card, struct program *program, struct contender *contender)
{
	program->contender = contender;
	atomic_store(&program->credit.credit, ALIQUOT_OPEN);
	atomic_store(&program->work.gates, ALIQUOT_GATES_WORK);
	atomic_store(&program->work.marks_end, 1);
	card->programs[card->count++] = program;
	turns_enter(contender, &program->worker, &program->work, &program->credit, card->now);
	card->look_at = card->now;
}

void card_note(const struct card *card, uint64_t *gpu_ns)
{
	for (unsigned i = 0; i < card->count; i++)
		gpu_ns[i] = card->programs[i]->gpu_ns;
}

double card_part(const struct card *card, const struct program *program, const uint64_t *before)
{
	uint64_t all = 0, mine = 0;
	for (unsigned i = 0; i < card->count; i++) {
		uint64_t had = card->programs[i]->gpu_ns - before[i];
		all += had;
		mine += card->programs[i] == program ? had : 0;
	}
	return all ? (double)mine / (double)all : 0;
}

/* The program's side: one quantum more into the queue, closed at once, if it is at work. */
static void ask(struct card *card, struct program *program)
{
	uint64_t closed = program->work.closed, done = program->work.marks[0].done;
	if (program->stopped || card->now < program->thinks_until)
		return;
	if (card->now >= program->idle_from && card->now < program->idle_until)
		return;
	if (program->burst && program->in_burst == program->burst) {
		if (done < closed)
			return;
		program->answers++;
		program->answered_ns += card->now - program->asked_at;
		program->in_burst = 0;
		program->thinks_until = card->now + program->think_ns;
		return;
	}
	if (program->in_burst == 0)
		program->asked_at = card->now;
	while (closed - done < program->depth &&
	       (!program->burst || program->in_burst < program->burst)) {
		closed++;
		program->in_burst++;
		program->work.quanta[closed % ALIQUOT_QUANTA].marks = (uint32_t)closed;
		program->work.quanta[closed % ALIQUOT_QUANTA].expected_ns = (uint32_t)program->quantum_ns;
		program->work.marks[0].asked = closed;
		program->work.launches++;
		program->work.opened = program->work.closed = closed;
	}
	if (program->only_open && program->in_burst == program->burst)
		program->work.closed = closed - 1;
	if (atomic_load(&program->credit.ring))
		card->look_at = card->now;
}

static bool can_run(struct card *card, struct program *program)
{
	if (!program->left_ns) {
		uint64_t next = program->work.marks[0].done + 1;
		if (next > program->work.closed || next > atomic_load(&program->credit.credit))
			return false;
		program->left_ns = program->quantum_ns / 2 + draw(card, (unsigned)program->quantum_ns + 1);
		if (program->never_ends)
			program->left_ns = UINT64_MAX / 2;
	}
	return true;
}

static bool has_begun(const struct program *program, uint64_t quantum)
{
	return program->work.marks[0].done + (program->left_ns > 0) >= quantum;
}

static void work(struct card *card)
{
	struct program *program = card->running < card->count ? card->programs[card->running] : NULL;
	bool goes_on = program && card->now < card->slice_until && can_run(card, program);
	for (unsigned i = 1; !goes_on && i <= card->count; i++) {
		unsigned next = (card->running + i) % card->count;
		if (!can_run(card, card->programs[next]))
			continue;
		if (next != card->running)
			card->switch_until = card->now + SWITCH_NS;
		card->running = next;
		card->slice_until = card->now + SLICE_NS + (next != card->running ? SWITCH_NS : 0);
		program = card->programs[next];
		goes_on = true;
	}
	if (!goes_on || card->now < card->switch_until)
		return;
	program->gpu_ns += STEP_NS;
	if (program->partner && !has_begun(program->partner, program->work.marks[0].done + 1))
		return; /* it spins */
	program->left_ns = program->left_ns > STEP_NS ? program->left_ns - STEP_NS : 0;
	if (!program->left_ns)
		program->work.marks[0].done++;
}

static void step(struct card *card)
{
	for (unsigned i = 0; i < card->count; i++)
		ask(card, card->programs[i]);
	work(card);
	if (card->now >= card->look_at) {
		card->looks++;
		uint64_t next = turns_look(&card->turns, card->now);
		/* A thread wakes up late, and sometimes very late. */
		uint64_t late = draw(card, 200) ? draw(card, 30) * US : draw(card, 1000) * US;
		card->look_at = next == TURNS_NEVER ? next : next + late;
	}
	card->now += STEP_NS;
}

void card_run(struct card *card, uint64_t ns)
{
	for (uint64_t end = card->now + ns; card->now < end;)
		step(card);
}

void cards_run(struct card *one, struct card *other, uint64_t ns)
{
	for (uint64_t end = one->now + ns; one->now < end;) {
		step(one);
		step(other);
	}
}
