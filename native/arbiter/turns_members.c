/* Turns: which slices contend for a GPU: adding and removing them and their processes, and changing
 * their settings. */
#include "turns_parts.h"
#include "turns_work.h"

static bool is_excluded(const struct contender *contender)
{
	return contender->settings.grant_state != ALIQUOT_GRANT_ACTIVE;
}

/* The list for its grant state. */
static struct contender **list_of(const struct contender *contender)
{
	struct turns *turns = contender->turns;
	return is_excluded(contender) ? &turns->excluded : &turns->contenders;
}

static void insert(struct contender *contender)
{
	struct contender **first = list_of(contender);
	contender->next = *first;
	*first = contender;
}

static void remove_from(struct contender *contender, struct contender **link)
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
	insert(contender);
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
	remove_from(contender, list_of(contender));
	struct contender *before = contender;
	while (before->joint != contender)
		before = before->joint;
	before->joint = contender->joint;
	turns_weigh(turns);
}

/* Resets it to a contender without work: no contender waits for it, nor does it wait. */
static void reset_contender(struct contender *contender, uint64_t now)
{
	if (contender->turns->holder == contender)
		contender->turns->holder = NULL;
	contender_set_state(contender, CONTENDER_OUT, now);
	/* However short the break was, its next work counts as an arrival (turns_charge.c). */
	contender->idle_at = now - TURNS_GAP_MOST_NS - 1;
	contender->pending = contender->active = contender->called = false;
	contender->waits_at = 0;
}

/* What its process did unobserved, under an earlier arbiter or with its gates open, is not counted. If
 * contenders take turns, quanta that have started are waited for, and nothing else. */
static void reset_worker(struct contender *contender, struct worker *worker, uint64_t now)
{
	*worker = (struct worker){.next = worker->next,
	                          .work = worker->work,
	                          .credit = worker->credit,
	                          .stretch = 1,
	                          .moved_at = now};
	work_look(worker, now);
	if (is_excluded(contender)) {
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
	       one->priority == other->priority && one->grant_state == other->grant_state;
}

void turns_change(struct contender *contender, const struct turns_settings *settings, uint64_t now)
{
	struct contender **before = list_of(contender);
	if (is_same(&contender->settings, settings))
		return;
	contender->settings = *settings;
	if (list_of(contender) != before) {
		remove_from(contender, before);
		insert(contender);
		reset_contender(contender, now);
		EACH_WORKER (worker, contender)
			reset_worker(contender, worker, now);
	}
	turns_weigh(contender->turns);
	/* What it used under its old settings does not count. */
	contender->tokens = contender_tokens_most(contender);
	contender->spent = false;
}

void turns_enter(struct contender *contender, struct worker *worker,
                 const struct aliquot_work_slice *work, struct aliquot_credit_slice *credit,
                 uint64_t now)
{
	*worker = (struct worker){.next = contender->workers, .work = work, .credit = credit};
	contender->workers = worker;
	reset_worker(contender, worker, now);
}

void turns_leave(struct contender *contender, struct worker *worker)
{
	struct worker **link = &contender->workers;
	while (*link != worker)
		link = &(*link)->next;
	*link = worker->next;
	work_open(worker);
}
