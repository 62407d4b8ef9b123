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
	static uint64_t groups; /* ever: a number is never used twice */
	*contender = (struct contender){.turns = turns,
	                                .joint = contender,
	                                .group = joint ? joint->group : ++groups,
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
	contender_leave_window(contender);
	if (turns->measured == contender)
		turns_forget_measured(turns, turns->looked_at);
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
	contender_leave_window(contender);
	contender_set_state(contender, CONTENDER_OUT, now);
	/* However short the break was, its next work counts as an arrival (turns_charge.c). */
	contender->idle_at = now - TURNS_GAP_MOST_NS - 1;
	contender->pending = contender->active = contender->called = false;
	contender->waits_at = 0;
}

/* What it did unobserved, under an earlier arbiter or with its gates open, was not counted. If
 * contenders take turns, quanta that have started are waited for, and nothing else. */
static void begin_worker(struct contender *contender, struct worker *worker)
{
	if (is_excluded(contender)) {
		worker->pending = false;
		work_open(worker);
	} else if (contender->turns->contended) {
		work_limit(worker, worker->pending);
		work_set_pace(worker, ALIQUOT_YIELD);
	}
}

static void end_common_window(struct contender *contender, uint64_t now)
{
	if (contender->state == CONTENDER_HOLDS)
		contender_end_window(contender->turns->holder, false, now);
}

static void restore_tokens(struct contender *contender)
{
	contender->tokens = contender_tokens_most(contender);
	contender->spent = false;
}

static bool is_same(const struct turns_settings *one, const struct turns_settings *other)
{
	return one->percent == other->percent && one->policy == other->policy &&
	       one->priority == other->priority && one->grant_state == other->grant_state &&
	       one->mps == other->mps;
}

void turns_change(struct contender *contender, const struct turns_settings *settings, uint64_t now)
{
	struct contender **before = list_of(contender);
	if (is_same(&contender->settings, settings))
		return;
	/* Its companions may be others from now on. */
	if (contender->settings.priority != settings->priority ||
	    (contender->settings.mps && contender->settings.policy != settings->policy))
		end_common_window(contender, now);
	contender->settings = *settings;
	if (contender->turns->measured == contender)
		turns_forget_measured(contender->turns, now);
	if (list_of(contender) != before) {
		remove_from(contender, before);
		insert(contender);
		reset_contender(contender, now);
		EACH_WORKER (worker, contender) {
			work_reset(worker, now);
			begin_worker(contender, worker);
		}
	}
	turns_weigh(contender->turns);
	restore_tokens(contender); /* what it used under its old settings does not count */
}

void turns_enter(struct contender *contender, struct worker *worker,
                 const struct aliquot_work_slice *work, struct aliquot_credit_slice *credit,
                 uint64_t now)
{
	worker->next = contender->workers;
	contender->workers = worker;
	if (contender->settings
	        .mps) { /* nothing is known of what it will do: it overlaps with nobody */
		end_common_window(contender, now);
		contender->measured_ns = 0;
	}
	work_connect(worker, work, credit, now);
	begin_worker(contender, worker);
}

void turns_leave(struct contender *contender, struct worker *worker)
{
	struct worker **link = &contender->workers;
	bool ran_beside = contender_runs_beside(contender);
	while (*link != worker)
		link = &(*link)->next;
	*link = worker->next;
	work_open(worker);
	/* What it was charged for a process that nothing could hold does not count for the others. */
	if (ran_beside && !contender_runs_beside(contender)) {
		contender_forget_debt(contender);
		restore_tokens(contender);
	}
}
