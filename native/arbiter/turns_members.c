#include "turns_parts.h"
#include "turns_work.h"

void turns_add(struct turns *turns, struct contender *contender,
               const struct turns_settings *settings, struct contender *joint, uint64_t now)
{
	*contender = (struct contender){.turns = turns,
	                                .next = turns->contenders,
	                                .joint = contender,
	                                .settings = *settings,
	                                .since = now,
	                                .gap_ns = TURNS_GAP_MOST_NS / 4};
	if (joint) {
		contender->joint = joint->joint;
		joint->joint = contender;
	}
	turns->contenders = contender;
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
	struct contender **link = &turns->contenders;
	while (*link != contender)
		link = &(*link)->next;
	*link = contender->next;
	struct contender *before = contender;
	while (before->joint != contender)
		before = before->joint;
	before->joint = contender->joint;
	turns_weigh(turns);
}

void turns_change(struct contender *contender, const struct turns_settings *settings)
{
	const struct turns_settings *before = &contender->settings;
	if (before->percent == settings->percent && before->policy == settings->policy &&
	    before->priority == settings->priority)
		return;
	contender->settings = *settings;
	turns_weigh(contender->turns);
	/* What it used by other rules is not held against it. */
	contender->tokens = contender_tokens_most(contender);
	contender->spent = false;
}

void turns_enter(struct contender *contender, struct worker *worker,
                 const struct aliquot_work_slice *work, struct aliquot_credit_slice *credit,
                 uint64_t now)
{
	*worker = (struct worker){.next = contender->workers,
	                          .work = work,
	                          .credit = credit,
	                          .stretch = 1,
	                          .moved_at = now};
	contender->workers = worker;
	/* What it did under an earlier arbiter is not counted again. */
	work_look(worker, now);
}

void turns_leave(struct contender *contender, struct worker *worker)
{
	struct worker **link = &contender->workers;
	while (*link != worker)
		link = &(*link)->next;
	*link = worker->next;
	work_open(worker);
}
