#include "turns_parts.h"
#include "turns_work.h"

static bool is_aside(const struct contender *contender)
{
	return contender->settings.hold != ALIQUOT_HOLD_TAKEN;
}

/* Where it is listed by its settings. */
static struct contender **list_of(const struct contender *contender)
{
	struct turns *turns = contender->turns;
	return is_aside(contender) ? &turns->aside : &turns->contenders;
}

static void list(struct contender *contender)
{
	struct contender **first = list_of(contender);
	contender->next = *first;
	*first = contender;
}

static void unlist(struct contender *contender, struct contender **link)
{
	while (*link != contender)
		link = &(*link)->next;
	*link = contender->next;
}

void turns_add(struct turns *turns, struct contender *contender,
               const struct turns_settings *settings, struct contender *joint, uint64_t now)
{
	*contender = (struct contender){.turns = turns,
	                                .joint = contender,
	                                .settings = *settings,
	                                .since = now,
	                                .gap_ns = TURNS_GAP_MOST_NS / 4};
	if (joint) {
		contender->joint = joint->joint;
		joint->joint = contender;
	}
	list(contender);
	turns_weigh(turns);
	contender->tokens = contender_tokens_most(contender);
}

void turns_remove(struct contender *contender)
{
	struct turns *turns = contender->turns;
	while (contender->workers)
		turns_leave(contender, contender->workers);
	if (turns->holder == contender)
		turns->holder = NULL;
	unlist(contender, list_of(contender));
	struct contender *before = contender;
	while (before->joint != contender)
		before = before->joint;
	before->joint = contender->joint;
	turns_weigh(turns);
}

/* As one that has no work: nobody waits for it, and it for nobody. */
static void rest(struct contender *contender, uint64_t now)
{
	if (contender->turns->holder == contender)
		contender->turns->holder = NULL;
	contender_set_state(contender, CONTENDER_OUT, now);
	/* However short that is, it was away: what it has when it comes back is new (turns_charge.c). */
	contender->idle_at = now - TURNS_GAP_MOST_NS - 1;
	contender->pending = contender->active = contender->called = false;
	contender->waits_at = 0;
}

/* What its process did while nobody looked, under an earlier arbiter or with its gates open, is not
 * counted. Where turns are taken, what it has begun is waited for, and nothing else. */
static void begin(struct contender *contender, struct worker *worker, uint64_t now)
{
	*worker = (struct worker){.next = worker->next,
	                          .work = worker->work,
	                          .credit = worker->credit,
	                          .stretch = 1,
	                          .moved_at = now};
	work_look(worker, now);
	if (is_aside(contender)) {
		worker->pending = false;
		work_open(worker);
	} else if (contender->turns->contended) {
		work_limit(worker, worker->pending);
		work_set_pace(worker, ALIQUOT_YIELD);
	}
}

static bool is_same(const struct turns_settings *one, const struct turns_settings *other)
{
	return one->percent == other->percent && one->policy == other->policy &&
	       one->priority == other->priority && one->hold == other->hold;
}

void turns_change(struct contender *contender, const struct turns_settings *settings, uint64_t now)
{
	struct contender **before = list_of(contender);
	if (is_same(&contender->settings, settings))
		return;
	contender->settings = *settings;
	if (list_of(contender) != before) {
		unlist(contender, before);
		list(contender);
		rest(contender, now);
		EACH_WORKER (worker, contender)
			begin(contender, worker, now);
	}
	turns_weigh(contender->turns);
	/* What it used by other rules is not held against it. */
	contender->tokens = contender_tokens_most(contender);
	contender->spent = false;
}

void turns_enter(struct contender *contender, struct worker *worker,
                 const struct aliquot_work_slice *work, struct aliquot_credit_slice *credit,
                 uint64_t now)
{
	*worker = (struct worker){.next = contender->workers, .work = work, .credit = credit};
	contender->workers = worker;
	begin(contender, worker, now);
}

void turns_leave(struct contender *contender, struct worker *worker)
{
	struct worker **link = &contender->workers;
	while (*link != worker)
		link = &(*link)->next;
	*link = worker->next;
	work_open(worker);
}
