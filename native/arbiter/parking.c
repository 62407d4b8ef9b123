#include "parking.h"

#include "aliquot/move.h"
#include "enum_names.h"
#include "grant_state.h"
#include "identity.h"
#include "log.h"
#include "overcommit.h"
#include "residence.h"
#include "wants.h"

#include <string.h>

#define PATIENCE_NS (60 * SECOND_NS) /* without progress, once memory has begun to move */
#define QUIET_NS (10 * SECOND_NS)    /* the same before that */
#define LONGEST_NS (120 * SECOND_NS) /* whatever a program says of its progress */
#define SNAPSHOT_NS (2 * SECOND_NS)  /* within which NVML must say what is left */
#define REFUSES_NS (5 * SECOND_NS)   /* one that could not leave is not asked again for others */
#define STOPPED_NS (2 * SECOND_NS)   /* a stopped program keeps others waiting */
#define FORGIVEN_NS (60 * SECOND_NS) /* after which a failure counts no more */
#define FAILS_MOST 2u                /* in a row, before it counts as unwilling */
#define ENDLESS_NS (4 * SECOND_NS)   /* GPU work of which nothing ends for so long */
#define DIES_NS (10 * SECOND_NS)     /* within which one that was killed is gone */
#define LEAST_NS (60 * SECOND_NS)    /* what has not left is believed not to be able to */

static const char *const step_names[] = {
	[PARKING_NONE] = "none",
	[PARKING_LEAVING] = "leaving",
	[PARKING_AWAY] = "away",
	[PARKING_RETURNING] = "returning",
};

static struct parked *record_of(const struct grant *grant)
{
	return &grant->record->parked;
}

static struct memory_turn_record *turn_of(const struct grant *grant)
{
	return &grant->record->turn;
}

enum parking_step parking_step(const struct grant *grant)
{
	uint64_t step = grant->record ? record_of(grant)->step : PARKING_NONE;
	return step <= PARKING_RETURNING ? (enum parking_step)step : PARKING_NONE;
}

static bool is_live(const struct process *process)
{
	return process && !process->ending;
}

#define EACH_LIVE(one, of)                                                                         \
	for (uint32_t slot_ = 0; slot_ < (of)->process_end; slot_++)                                   \
		for (struct process *one = (of)->processes[slot_]; is_live(one); one = NULL)

__attribute__((format(printf, 2, 3))) static void say_why(struct grant *grant, const char *format,
                                                          ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(grant->parking.why, sizeof(grant->parking.why), format, args);
	va_end(args);
}

static void set_step(struct grant *grant, enum parking_step step)
{
	record_of(grant)->step = step;
	grant->parking.since = grant->parking.begun_at = loop_now();
	grant->parking.away_bytes = 0;
	grant->parking.settled_at = 0;
	grant->parking.was_contended = false;
	grant->parking.drained_at = loop_now();
}

/* --- what its programs say ---------------------------------------------------------------------- */

/* Whether a call of a program waits for the memory that leaves or is away. */
static bool is_needed(const struct grant *grant)
{
	uint32_t word = atomic_load(&grant->limits->slices[0].residence);
	if (grant->parking.joins)
		return true;
	EACH_LIVE(process, grant)
	if (process->pages.work && atomic_load(&process->pages.work->wanted) == word)
		return true;
	return false;
}

/* A process that has not dealt with the newest change; NULL: all have. */
static struct process *find_unsettled(const struct grant *grant)
{
	EACH_LIVE(process, grant)
	if (!residence_is_settled(process))
		return process;
	return NULL;
}

static uint32_t failure_of(const struct process *process)
{
	return process->pages.work ? atomic_load(&process->pages.work->move_failed) : 0;
}

static const struct process *find_failed(const struct grant *grant)
{
	EACH_LIVE(process, grant)
	if (failure_of(process))
		return process;
	return NULL;
}

static bool has_been_stopped_for(const struct grant *grant, uint64_t ns)
{
	uint64_t now = loop_now();
	EACH_LIVE(process, grant)
	{
		bool dies = process->killed_at && now - process->killed_at < DIES_NS;
		if (process->stopped && !dies && now - process->stopped_since >= ns)
			return true;
	}
	return false;
}

bool parking_has_stopped(const struct grant *grant)
{
	return has_been_stopped_for(grant, 0);
}

/* Whether a program has used memory within that time, or does not tell: it may not say either when it needs
 * its memory. Copies are such use, and no work of the GPU. */
static bool was_used(struct grant *grant, uint64_t within_ns, uint64_t now)
{
	uint64_t sum = 0;
	bool tells = true;
	EACH_LIVE(process, grant)
	{
		uint64_t calls = process->pages.work ? atomic_load(&process->pages.work->calls) : 0;
		tells &= calls != 0;
		sum += calls;
	}
	if (sum != grant->parking.calls || !grant->parking.called_at)
		grant->parking.called_at = now;
	grant->parking.calls = sum;
	return !tells || now - grant->parking.called_at < within_ns;
}

/* Whether memory has moved lately, or may still begin to. */
static bool goes_on(struct grant *grant, uint64_t now)
{
	uint64_t sum = 0;
	EACH_LIVE(process, grant)
	sum += process->pages.work ? atomic_load(&process->pages.work->away_bytes) : 0;
	if (sum != grant->parking.away_bytes)
		grant->parking.since = now;
	grant->parking.away_bytes = sum;
	return now - grant->parking.begun_at < LONGEST_NS &&
	       now - grant->parking.since < (sum ? PATIENCE_NS : QUIET_NS);
}

/* --- the steps ---------------------------------------------------------------------------------- */

static bool has_no_work(struct grant *grant, uint64_t for_ns)
{
	struct credit_figures figures;
	credit_read(grant, 0, &figures);
	return credit_sees_all(grant, 0, &figures) && figures.idle_ns >= for_ns;
}

static bool is_due(struct grant *grant, uint64_t now)
{
	uint64_t after = record_of(grant)->after_ms * MILLISECOND_NS;
	if (!after || was_used(grant, after, now) || now < grant->parking.not_before ||
	    !grant->gpus[0] || *grant->broken || !residence_is_swappable(grant) ||
	    residence_is_away(grant) || grant_state(grant) != ALIQUOT_GRANT_ACTIVE ||
	    grant_life(grant) == ALIQUOT_ENDED)
		return false;
	return grant->process_count && !find_unsettled(grant) && !parking_has_stopped(grant) &&
	       has_no_work(grant, after);
}

static void look_due(struct grant *grant, uint64_t now)
{
	uint64_t *since = &grant->parking.due_since;
	bool due = parking_step(grant) == PARKING_NONE && is_due(grant, now);
	*since = !due ? 0 : *since ? *since : now;
}

/* Whether another idle grant gives up its memory first: the one that has been due for longest. */
static bool is_after_another(const struct grant *grant)
{
	for (const struct grant *other = grant->arbiter->grants; other; other = other->next)
		if (other->gpus[0] == grant->gpus[0] && other->parking.due_since &&
		    other->parking.due_since < grant->parking.due_since)
			return true;
	return false;
}

static bool is_first(const struct grant *grant);

/* Whether somebody wants its room: one that returns, or a request. */
static bool is_wanted(const struct grant *grant)
{
	struct arbiter *arbiter = grant->arbiter;
	if (is_after_another(grant))
		return false;
	for (const struct grant *other = arbiter->grants; other; other = other->next)
		if (parking_step(other) == PARKING_AWAY && other->parking.wanted_at &&
		    other->gpus[0] == grant->gpus[0] && is_first(other) && wants_room_for(other))
			return true;
	return wants_room_on(arbiter, grant->gpus[0]);
}

static bool shall_leave(struct grant *grant, uint64_t now)
{
	if (!grant->parking.due_since || (record_of(grant)->if_wanted && !is_wanted(grant)))
		return false;
	credit_look(&grant->arbiter->credit); /* it may have work since the last look */
	return is_due(grant, now);
}

bool parking_is_idle(struct grant *grant, uint64_t for_ns)
{
	bool was = was_used(grant, for_ns, loop_now());
	return !was && has_no_work(grant, for_ns);
}

static void move(struct grant *grant, bool on_host)
{
	struct failure failure = {.reader = grant->owner_uid};
	if (!residence_set(grant, on_host, &failure))
		log_event("grant %s: %s", grant->name, failure.text);
}

static void begin(struct grant *grant)
{
	log_event("grant %s is idle: its memory leaves the GPU", grant->name);
	say_why(grant, "%s", "");
	set_step(grant, PARKING_LEAVING);
	grant->parking.due_since = 0;
	move(grant, true);
}

/* Whether the host has room for its copies; says it if not. */
static bool has_host(struct grant *grant)
{
	struct failure failure = {.reader = grant->owner_uid};
	bool has = overcommit_may_leave(grant->arbiter, grant, &failure);
	if (!has)
		say_why(grant, "%s", failure.text);
	return has;
}

void parking_leave(struct grant *grant, uint32_t leave_parts)
{
	if (parking_step(grant) == PARKING_NONE) {
		log_event("grant %s: others have their turn", grant->name);
		say_why(grant, "%s", "");
		turn_of(grant)->off_since_ns = loop_now();
		turn_of(grant)->is_others = 1;
		set_step(grant, PARKING_LEAVING);
	}
	bool more = residence_leave(grant, leave_parts);
	if (more && parking_step(grant) == PARKING_AWAY)
		grant->parking.since = grant->parking.begun_at = loop_now();
}

static bool has_failed_lately(const struct grant *grant)
{
	return grant->parking.failures && loop_now() - grant->parking.failed_at < FORGIVEN_NS;
}

bool parking_refuses(struct grant *grant)
{
	uint64_t now = loop_now();
	if (now < grant->parking.refuses_until || parking_has_stopped(grant))
		return true;
	/* More of it shall leave, and does not. */
	return parking_step(grant) == PARKING_AWAY && find_unsettled(grant) && !goes_on(grant, now);
}

bool parking_is_unwilling(const struct grant *grant)
{
	const struct parking *parking = &grant->parking;
	bool begins = parking_step(grant) == PARKING_LEAVING && parking->away_bytes;
	bool fails = has_failed_lately(grant) &&
	             (parking->is_unswappable || parking->failures >= FAILS_MOST);
	return parking_has_stopped(grant) || (fails && !begins);
}

bool parking_may_be_ended(const struct grant *grant)
{
	if (atomic_load(&grant->limits->slices[0].priority) != ALIQUOT_BACKGROUND)
		return false;
	return has_been_stopped_for(grant, STOPPED_NS) ||
	       (has_failed_lately(grant) && grant->parking.own_failures >= FAILS_MOST);
}

bool parking_end(struct grant *grant, const char *reason)
{
	bool is_ended = false;
	EACH_LIVE(process, grant)
	{
		if (process->killed_at || identity_kill(process->death.fd))
			continue;
		process->killed_at = loop_now();
		is_ended = true;
		log_event("grant %s: process %d is ended: %s", grant->name, process->pid, reason);
	}
	if (is_ended)
		grant->parking.failures = grant->parking.own_failures = 0;
	return is_ended;
}

/* Whether its memory stays for a reason that is the program's own (parking.h). */
static bool is_own_failure(const struct grant *grant, const struct process *late,
                           const struct process *failed)
{
	if (failed && failure_of(failed) == ALIQUOT_MOVE_UNSWAPPABLE)
		return true;
	bool drains = late ? !late->stopped && late->pages.work &&
	                         atomic_load(&late->pages.work->draining) ==
	                             atomic_load(&grant->limits->slices[0].residence)
	                   : failed && failure_of(failed) == ALIQUOT_MOVE_BUSY;
	return drains && !grant->parking.was_contended &&
	       loop_now() - grant->parking.drained_at >= ENDLESS_NS;
}

static void count_failure(struct grant *grant, bool own, const struct process *failed)
{
	struct parking *parking = &grant->parking;
	if (!has_failed_lately(grant))
		parking->failures = parking->own_failures = 0;
	parking->failures++;
	parking->is_unswappable = failed && failure_of(failed) == ALIQUOT_MOVE_UNSWAPPABLE;
	parking->own_failures = own ? parking->own_failures + 1 : 0;
	parking->failed_at = loop_now();
}

/* Looks whether its GPU work ends, while it is to leave. */
static void see_work(struct grant *grant)
{
	struct parking *parking = &grant->parking;
	struct credit_figures figures;
	credit_look(&grant->arbiter->credit);
	credit_read(grant, 0, &figures);
	parking->was_contended |= figures.contended || !credit_sees_all(grant, 0, &figures);
	if (figures.backlog != parking->backlog)
		parking->drained_at = loop_now();
	parking->backlog = figures.backlog;
}

static void begin_return(struct grant *grant)
{
	set_step(grant, PARKING_RETURNING);
	grant->parking.joins = false;
	grant->parking.wanted_at = 0;
	move(grant, false);
}

static void call_off(struct grant *grant)
{
	log_event("grant %s stays on the GPU: %s", grant->name, grant->parking.why);
	grant->parking.refuses_until = loop_now() + REFUSES_NS;
	begin_return(grant);
}

/* Whether NVML has said what is left on the GPU since all memory has left, and that it is less than the
 * slice. If it does not, nothing is gained, and the memory returns. */
static bool has_left(struct grant *grant, uint64_t now)
{
	unsigned gpu = grant_gpu_number(grant, 0);
	const struct gpu_snapshot *snapshot = observer_latest(&grant->arbiter->observer, gpu);
	uint64_t *settled_at = &grant->parking.settled_at;
	if (!grant->process_count) {
		grant->record->staying_bytes = 0;
		return true;
	}
	*settled_at = *settled_at ? *settled_at : now;
	bool is_new = snapshot && snapshot->told && snapshot->asked_at >= *settled_at;
	if (is_new) {
		residence_take_staying(grant, true);
		if (grant->record->staying_bytes < atomic_load(&grant->limits->slices[0].limit_bytes))
			return true;
	} else if (now - *settled_at < SNAPSHOT_NS) {
		observer_want(&grant->arbiter->observer, UINT64_C(1) << gpu);
		return false;
	}
	say_why(grant, "NVML does not say that its memory has left the GPU");
	call_off(grant);
	return false;
}

static void look_leaving(struct grant *grant, uint64_t now)
{
	struct failure failure = {.reader = grant->owner_uid};
	/* It may be parked: an arbiter was killed just then. */
	bool is_parked = grant_state(grant) == ALIQUOT_GRANT_PARKED;
	bool is_others = turn_of(grant)->is_others;
	if (!is_parked && !is_others && is_needed(grant)) {
		say_why(grant, "%s", "");
		log_event("grant %s has work again: its memory stays on the GPU", grant->name);
		begin_return(grant);
		return;
	}
	if (!is_parked) {
		move(grant, true);
		see_work(grant);
		const struct process *late = find_unsettled(grant), *failed = find_failed(grant);
		bool stopped = late && late->stopped && now - grant->parking.begun_at > STOPPED_NS;
		if (late && goes_on(grant, now) && !(is_others && stopped))
			return;
		if (late || failed) {
			if (late)
				say_why(grant, "process %d %s", late->pid,
				        late->stopped ? "is stopped" : "did not react");
			else
				say_why(grant, "process %d: %s", failed->pid,
				        enum_name(&enum_names_move_failure, failure_of(failed)));
			count_failure(grant, is_own_failure(grant, late, failed), failed);
			call_off(grant);
			return;
		}
		if (!has_left(grant, now) || !grant_state_set(grant, ALIQUOT_GRANT_PARKED, &failure))
			return;
	}
	grant->parking.out_ns = now - grant->parking.begun_at;
	grant->parking.failures = grant->parking.own_failures = 0;
	set_step(grant, PARKING_AWAY);
	if (is_others)
		return;
	record_of(grant)->times++;
	record_of(grant)->since_ns = now;
}

/* What stayed although all shall leave: so little it cannot have less. */
static void learn_least(struct grant *grant, uint64_t now)
{
	if (!residence_leaves_whole(grant) || find_unsettled(grant))
		return;
	grant->parking.least_bytes = residence_staying_bytes(grant);
	grant->parking.least_until = now + LEAST_NS;
}

/* Whether no other grant has waited longer to return to that GPU. */
static bool is_first(const struct grant *grant)
{
	for (const struct grant *other = grant->arbiter->grants; other; other = other->next)
		if (parking_step(other) == PARKING_AWAY && other->parking.wanted_at &&
		    other->gpus[0] == grant->gpus[0] && other->parking.wanted_at < grant->parking.wanted_at)
			return false;
	return true;
}

static bool fits_again(struct grant *grant)
{
	struct arbiter *arbiter = grant->arbiter;
	struct failure failure = {.reader = grant->owner_uid};
	arbiter->returns = true;
	bool fits = grant->gpus[0] && grant_state_set(grant, ALIQUOT_GRANT_ACTIVE, &failure);
	arbiter->returns = false;
	if (!fits)
		say_why(grant, "%s", grant->gpus[0] ? failure.text : "the machine no longer has its GPU");
	return fits;
}

static void come_back(struct grant *grant, uint64_t now)
{
	struct parked *record = record_of(grant);
	uint64_t since = turn_of(grant)->is_others ? turn_of(grant)->off_since_ns : record->since_ns;
	if (!turn_of(grant)->is_others)
		record->parked_ns += now - record->since_ns;
	say_why(grant, "%s", "");
	log_event("grant %s was off its GPU for %llu ms: its memory comes back", grant->name,
	          (unsigned long long)((now - since) / MILLISECOND_NS));
	begin_return(grant);
}

static void look_away(struct grant *grant, uint64_t now)
{
	/* It may be active: an arbiter was killed just then. */
	if (grant_state(grant) == ALIQUOT_GRANT_PARKED) {
		bool needed = is_needed(grant);
		if (!needed)
			grant->parking.wanted_at = 0;
		else if (!grant->parking.wanted_at)
			grant->parking.wanted_at = now;
		learn_least(grant, now);
		if (!needed || turn_of(grant)->takes || !is_first(grant) || !fits_again(grant))
			return;
	}
	come_back(grant, now);
}

bool parking_return(struct grant *grant)
{
	if (!fits_again(grant))
		return false;
	come_back(grant, loop_now());
	return true;
}

bool parking_may_return(struct grant *grant)
{
	struct failure failure = {.reader = grant->owner_uid};
	if (grant_is_off(grant)) /* all but the room is still its own */
		return true;
	grant->arbiter->returns = true;
	bool may = grant_state_may_wait(grant, &failure);
	grant->arbiter->returns = false;
	if (!may)
		say_why(grant, "%s", failure.text);
	return may;
}

void parking_say_why(struct grant *grant, const char *why)
{
	say_why(grant, "%s", why);
}

/* Its turn begins. */
static void count_turn(struct grant *grant, uint64_t now)
{
	struct memory_turn_record *turn = turn_of(grant);
	uint64_t off_ns = now - turn->off_since_ns;
	grant->parking.on_since = now;
	if (!turn->is_others)
		return;
	turn->is_others = 0;
	turn->times++;
	turn->off_ns += off_ns;
	if (off_ns > turn->longest_off_ns)
		turn->longest_off_ns = off_ns;
}

static void look_returning(struct grant *grant, uint64_t now)
{
	move(grant, false);
	const struct process *late = find_unsettled(grant);
	if (late && failure_of(late))
		say_why(grant, "process %d: %s", late->pid,
		        enum_name(&enum_names_move_failure, failure_of(late)));
	else if (late && now - grant->parking.since > QUIET_NS)
		say_why(grant, "process %d did not react", late->pid);
	/* A program that cannot bring its memory back waits for it, and tries for ever; others go on. What it has
	 * not brought back stays its own. */
	bool stopped = late && late->stopped && turn_of(grant)->takes &&
	               now - grant->parking.begun_at > STOPPED_NS;
	if (late && goes_on(grant, now) && !stopped)
		return;
	if (late) /* others are asked first */
		grant->parking.refuses_until = now + REFUSES_NS;
	grant->parking.not_before = now + record_of(grant)->after_ms * MILLISECOND_NS;
	grant->parking.in_ns = now - grant->parking.begun_at;
	set_step(grant, PARKING_NONE);
	count_turn(grant, now);
}

static void take_step(struct grant *grant, uint64_t now)
{
	if (!grant->parking.begun_at) /* an arbiter before this one began the step */
		grant->parking.since = grant->parking.begun_at = now;
	if (parking_step(grant) == PARKING_NONE && shall_leave(grant, now) && has_host(grant))
		begin(grant);
	else if (parking_step(grant) == PARKING_LEAVING)
		look_leaving(grant, now);
	else if (parking_step(grant) == PARKING_AWAY)
		look_away(grant, now);
	else if (parking_step(grant) == PARKING_RETURNING)
		look_returning(grant, now);
}

/* --- for others --------------------------------------------------------------------------------- */

bool parking_update(struct arbiter *arbiter)
{
	uint64_t now = loop_now();
	bool moves = false;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (grant->record && record_of(grant)->after_ms && grant_check(grant))
			look_due(grant, now);
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		bool is_used = grant->record && (record_of(grant)->after_ms || turn_of(grant)->takes);
		if (!is_used || !grant_check(grant))
			continue;
		enum parking_step before = parking_step(grant);
		bool was_wanted = grant->parking.wanted_at;
		take_step(grant, now);
		/* What one has left, or wants, is for another that may have been looked at before. */
		bool is_news = parking_step(grant) != before || (!was_wanted && grant->parking.wanted_at);
		moves |= parking_moves(grant) || is_news;
	}
	return moves;
}

bool parking_ring(struct grant *grant, bool joins)
{
	if (parking_step(grant) == PARKING_NONE)
		return false;
	grant->parking.joins |= joins;
	return true;
}

void parking_drop(struct grant *grant)
{
	if (parking_step(grant) == PARKING_NONE)
		return;
	if (parking_step(grant) == PARKING_AWAY && !turn_of(grant)->is_others)
		record_of(grant)->parked_ns += loop_now() - record_of(grant)->since_ns;
	set_step(grant, PARKING_NONE);
	count_turn(grant, loop_now());
	grant->parking.joins = false;
	grant->parking.wanted_at = 0;
	say_why(grant, "%s", "");
	grant->parking.blocked_since = 0;
	residence_refuse(grant, false);
}

bool parking_take_turns(struct grant *grant, struct failure *failure)
{
	if (!grant_state_may_wait(grant, failure))
		return false;
	turn_of(grant)->is_others = 1;
	turn_of(grant)->off_since_ns = loop_now();
	set_step(grant, PARKING_AWAY);
	log_event("grant %s waits for its turn", grant->name);
	return true;
}

bool parking_moves(const struct grant *grant)
{
	return parking_step(grant) == PARKING_LEAVING || parking_step(grant) == PARKING_RETURNING;
}

void parking_write(const struct grant *grant, bool visible, struct json *out)
{
	static const struct parked none;
	const struct parked *record = grant->record ? record_of(grant) : &none;
	bool is_away = parking_step(grant) == PARKING_AWAY && !turn_of(grant)->is_others;
	uint64_t now_ns = is_away ? loop_now() - record->since_ns : 0;
	if (record->after_ms)
		json_number(out, "park_after_ms", record->after_ms);
	else
		json_string(out, "park_after_ms", NULL);
	json_bool(out, "park_if_wanted", record->if_wanted != 0);
	json_bool(out, "park_due", grant->parking.due_since != 0);
	json_string(out, "parking", step_names[parking_step(grant)]);
	json_number(out, "parked_times", record->times);
	json_number(out, "parked_ns", record->parked_ns + now_ns);
	if (is_away)
		json_number(out, "parked_for_ns", now_ns);
	else
		json_string(out, "parked_for_ns", NULL);
	json_bool(out, "parking_waits", grant->parking.wanted_at != 0);
	json_string(out, "parking_why", visible && *grant->parking.why ? grant->parking.why : NULL);
}
