#include "rotation.h"

#include "capacity.h"
#include "memory_turns.h"
#include "parking.h"
#include "residence.h"

#include <stdlib.h>

#define LOOK_NS (10 * MILLISECOND_NS)  /* while memory moves */
#define WAIT_NS (100 * MILLISECOND_NS) /* while a grant waits for its turn */
#define SWAP_WAIT_MS UINT64_C(15000)
#define EXCHANGE_NS (500 * MILLISECOND_NS) /* before one was seen */
#define IDLE_NS SECOND_NS                  /* at least, before a turn ends early */
#define UNUSED_NS (2 * SECOND_NS)          /* a grant that no program has joined */
#define MOVING_NS (60 * SECOND_NS)
#define ANSWER_NS (2 * SECOND_NS)  /* one that is blocked for so long is answered */
#define ENDING_NS (10 * SECOND_NS) /* within which the memory of a dead program should be free */
/* One that is blocked waits no longer than this for dead programs of the GPU: new ones may die all the time. */
#define ANSWER_MOST_NS (ANSWER_NS + ENDING_NS)
/* More than what is missing leaves: NVML counts in larger units than programs do. */
#define MARGIN_BYTES (UINT64_C(32) << 20)

struct members {
	struct memory_member *all;
	struct grant **grants;
	uint64_t *keep;
	size_t count;
};

static bool is_member(const struct grant *grant, const struct gpu *gpu)
{
	if (!grant->record || !grant->record->turn.takes || grant->gpus[0] != gpu || *grant->broken)
		return false;
	/* It is suspended, or somebody does that. */
	return parking_step(grant) != PARKING_NONE || grant_state(grant) == ALIQUOT_GRANT_ACTIVE;
}

/* --- how things are ----------------------------------------------------------------------------- */

static uint64_t wait_ns(const struct grant *grant)
{
	uint64_t ms = grant->record->turn.wait_ms;
	return (ms ? ms : SWAP_WAIT_MS) * MILLISECOND_NS;
}

/* In percent, as turns.h would have it if all slices of the GPU were on it. */
static double weight_of(const struct grant *grant)
{
	uint32_t percent = 0, without = 0;
	for (const struct grant *one = grant->arbiter->grants; one; one = one->next) {
		if (!one->limits || one->gpus[0] != grant->gpus[0])
			continue;
		uint32_t its = atomic_load(&one->limits->slices[0].compute_percent);
		percent += its;
		without += !its;
	}
	uint32_t own = atomic_load(&grant->limits->slices[0].compute_percent);
	double weight = own ? own : (percent < 100 ? (100.0 - percent) / without : 0);
	return weight < 1 ? 1 : weight;
}

static uint64_t least_of(const struct grant *grant, uint64_t now)
{
	struct residence_sum sum;
	residence_sum(grant, &sum);
	const struct aliquot_slice_limits *slice = &grant->limits->slices[0];
	uint64_t least = atomic_load(&slice->driver_bytes) + sum.charged_bytes - sum.movable_bytes;
	if (!grant->process_count)
		return 0;
	if (now < grant->parking.least_until && grant->parking.least_bytes > least)
		least = grant->parking.least_bytes;
	uint64_t limit = atomic_load(&slice->limit_bytes);
	return least < limit ? least : limit;
}

static bool is_idle(struct grant *grant, uint64_t now)
{
	uint64_t return_ns = grant->parking.in_ns, on_ns = now - grant->parking.on_since;
	if (!grant->process_count)
		return on_ns > UNUSED_NS;
	return parking_is_idle(grant, return_ns > IDLE_NS ? return_ns : IDLE_NS);
}

static void see(struct grant *grant, struct memory_member *out, uint64_t now)
{
	static const enum memory_turn turns[] = {
		[PARKING_NONE] = MEMORY_ON,
		[PARKING_LEAVING] = MEMORY_LEAVING,
		[PARKING_AWAY] = MEMORY_OFF,
		[PARKING_RETURNING] = MEMORY_RETURNING,
	};
	const struct memory_turn_record *turn = &grant->record->turn;
	if (!grant->parking.on_since)
		grant->parking.on_since = now;
	*out = (struct memory_member){
		.turn = turns[parking_step(grant)],
		.limit_bytes = atomic_load(&grant->limits->slices[0].limit_bytes),
		.staying_bytes = residence_staying_bytes(grant),
		.least_bytes = least_of(grant, now),
		.since = grant->parking.on_since,
		.wanted_at = grant->parking.wanted_at,
		.wait_ns = wait_ns(grant),
		.weight = weight_of(grant),
		.served = grant->parking.served,
		.refuses = parking_refuses(grant),
		.unwilling = parking_is_unwilling(grant),
		.may_be_ended = parking_may_be_ended(grant),
	};
	if (out->turn == MEMORY_ON)
		out->idle = is_idle(grant, now);
	if (out->turn == MEMORY_OFF) {
		out->since = turn->is_others ? turn->off_since_ns : grant->parking.wanted_at;
		if (out->least_bytes > out->staying_bytes)
			out->least_bytes = out->staying_bytes;
		if (out->wanted_at && !parking_may_return(grant)) /* nobody leaves for it */
			out->wanted_at = 0;
	}
}

/* How long an exchange takes: the slowest move out and the slowest return, as they were the last time. */
static uint64_t exchange_ns(const struct members *members)
{
	uint64_t out = 0, in = 0;
	for (size_t i = 0; i < members->count; i++) {
		const struct parking *parking = &members->grants[i]->parking;
		out = parking->out_ns > out ? parking->out_ns : out;
		in = parking->in_ns > in ? parking->in_ns : in;
	}
	return out && in ? out + in : EXCHANGE_NS;
}

static bool find_members(struct arbiter *arbiter, const struct gpu *gpu, struct members *out,
                         uint64_t now)
{
	size_t count = 0;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		count += is_member(grant, gpu);
	*out = (struct members){0};
	if (!count)
		return false;
	out->all = calloc(count, sizeof(*out->all));
	out->grants = calloc(count, sizeof(struct grant *));
	out->keep = calloc(count, sizeof(*out->keep));
	if (!out->all || !out->grants || !out->keep)
		return false;
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		if (is_member(grant, gpu)) {
			see(grant, &out->all[out->count], now);
			out->grants[out->count++] = grant;
		}
	return true;
}

/* Counts the time since the last look, and who begins to need the GPU. */
static void count_time(struct members *members, uint64_t passed_ns)
{
	memory_turns_serve(members->all, members->count, passed_ns);
	for (size_t i = 0; i < members->count; i++) {
		struct memory_member *member = &members->all[i];
		struct parking *parking = &members->grants[i]->parking;
		bool is_busy = member->turn == MEMORY_OFF ? member->wanted_at != 0 : !member->idle;
		if (is_busy && !parking->was_busy)
			member->served = memory_turns_newcomer(members->all, members->count, i);
		parking->was_busy = is_busy;
		parking->served = member->served;
	}
}

/* --- what is done ------------------------------------------------------------------------------- */

/* The part of its movable memory that must be away for it to have no more than that on the GPU. */
static uint32_t leave_parts(const struct grant *grant, const struct memory_member *member,
                            uint64_t keep)
{
	struct residence_sum sum;
	residence_sum(grant, &sum);
	uint64_t driver = atomic_load(&grant->limits->slices[0].driver_bytes);
	uint64_t here = member->turn == MEMORY_OFF ? member->staying_bytes
	                                           : sum.charged_bytes - sum.away_bytes + driver;
	uint64_t more = here + MARGIN_BYTES > keep ? here + MARGIN_BYTES - keep : 0;
	uint64_t leave = sum.away_bytes + more;
	if (leave >= sum.movable_bytes)
		return more ? 0 : 1;
	double part = (double)leave / (double)sum.movable_bytes * ALIQUOT_LEAVE_WHOLE;
	uint32_t parts = (uint32_t)part + 2; /* rounded up; 1 stands for nothing */
	return more ? parts : 1;
}

/* Says why the one that waits is not back yet, if it is not only that its turn has not come. */
static void say_why(const struct members *members, size_t waiting, uint64_t now)
{
	struct grant *waiter = members->grants[waiting];
	for (size_t i = 0; i < members->count; i++) {
		const struct grant *one = members->grants[i];
		const char *stopped = parking_has_stopped(one) ? "a program of it is stopped" : NULL;
		const struct memory_member *member = &members->all[i];
		bool is_on = member->turn == MEMORY_ON && member->refuses;
		if (i == waiting || (!is_on && !member->unwilling))
			continue;
		char text[sizeof(one->parking.why)];
		bool has_failed = now < one->parking.refuses_until || member->unwilling;
		const char *why = stopped ? stopped : has_failed ? one->parking.why : "";
		snprintf(text, sizeof(text), "%s does not leave the GPU: %.150s",
		         grant_name_for(one, waiter->owner_uid), why);
		parking_say_why(waiter, text);
		return;
	}
	parking_say_why(waiter, "");
}

/* Whether a program of the GPU has died and NVML may still list it: its memory is on its way. */
static bool is_somebody_ending(const struct arbiter *arbiter, const struct gpu *gpu, uint64_t now)
{
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		for (uint32_t slot = 0; slot < grant->process_end; slot++) {
			const struct process *process = grant->processes[slot];
			bool ends = process && process->ending && now - process->dead_at < ENDING_NS;
			for (uint32_t i = 0; ends && i < grant->slice_count; i++)
				if (grant->gpus[i] == gpu)
					return true;
		}
	return false;
}

/* Ends a `background` grant for one that is none. False: there is none to end. */
static bool end_for(const struct members *members, uint64_t room, size_t waiting)
{
	const struct grant *waiter = members->grants[waiting];
	char reason[sizeof(waiter->name) + 96];
	if (atomic_load(&waiter->limits->slices[0].priority) == ALIQUOT_BACKGROUND)
		return false;
	size_t which = memory_turns_to_end(members->all, members->count, room, waiting);
	if (which == MEMORY_NONE)
		return false;
	snprintf(reason, sizeof(reason),
	         "it is background, its memory does not leave, and %s waits for it", waiter->name);
	return parking_end(members->grants[which], reason);
}

/* Answers those that others keep from the GPU who give nothing: their calls for memory are out of memory, and one that
 * may be ended for them is. */
static void answer_blocked(struct members *members, const struct gpu *gpu, uint64_t room,
                           uint64_t now)
{
	bool has_ended = false, is_ending = is_somebody_ending(members->grants[0]->arbiter, gpu, now);
	for (size_t i = 0; i < members->count; i++) {
		const struct memory_member *member = &members->all[i];
		struct grant *grant = members->grants[i];
		struct parking *parking = &grant->parking;
		bool waits = member->turn == MEMORY_OFF && member->wanted_at;
		bool blocked = waits && memory_turns_is_blocked(members->all, members->count, room, i);
		if (!blocked || !parking->blocked_since)
			parking->blocked_since = parking->unanswered_since = blocked ? now : 0;
		else if (is_ending)
			parking->unanswered_since = now;
		bool is_due = blocked && (now - parking->unanswered_since >= ANSWER_NS ||
		                          now - parking->blocked_since >= ANSWER_MOST_NS);
		/* What one that is ended has may be enough for all: they are looked at anew. */
		has_ended = has_ended || (is_due && end_for(members, room, i));
		residence_refuse(grant, is_due && !has_ended);
		if (blocked)
			say_why(members, i, now);
	}
}

/* Returns whether a grant waits for its turn. */
static bool rotate(struct arbiter *arbiter, const struct gpu *gpu, struct members *members,
                   uint64_t now)
{
	unsigned number = (unsigned)(gpu - arbiter->nvml.gpus);
	struct memory_plan plan = {.keep = members->keep};
	uint64_t members_bytes = 0, present = capacity_present_bytes(arbiter, gpu, NULL);
	for (size_t i = 0; i < members->count; i++)
		members_bytes += members->all[i].turn == MEMORY_OFF ? members->all[i].staying_bytes
		                                                    : members->all[i].limit_bytes;
	uint64_t rigid = present > members_bytes ? present - members_bytes : 0;
	uint64_t room = gpu->memory_bytes > rigid ? gpu->memory_bytes - rigid : 0;
	answer_blocked(members, gpu, room, now);
	memory_turns_plan(members->all, members->count, room, exchange_ns(members), now, &plan);
	if (plan.waiting == MEMORY_NONE)
		return false;
	if (plan.returns && parking_return(members->grants[plan.waiting]))
		return true;
	for (size_t i = 0; i < members->count && !plan.returns; i++) {
		if (members->keep[i] == MEMORY_STAYS)
			continue;
		parking_leave(members->grants[i],
		              leave_parts(members->grants[i], &members->all[i], members->keep[i]));
		observer_want(&arbiter->observer, UINT64_C(1) << number);
	}
	if (!plan.returns)
		say_why(members, plan.waiting, now);
	return true;
}

static void count_moving(struct arbiter *arbiter, unsigned gpu, const struct members *members,
                         uint64_t passed_ns)
{
	bool moves = false;
	for (size_t i = 0; i < members->count; i++)
		moves |= members->all[i].turn == MEMORY_LEAVING || members->all[i].turn == MEMORY_RETURNING;
	double part = (double)passed_ns / (double)MOVING_NS;
	part = part > 1 ? 1 : part;
	arbiter->moving[gpu] += part * ((moves ? 1.0 : 0.0) - arbiter->moving[gpu]);
}

/* --- for others --------------------------------------------------------------------------------- */

void rotation_update(struct arbiter *arbiter)
{
	bool moves = parking_update(arbiter), waits = false;
	uint64_t now = loop_now();
	uint64_t passed = arbiter->rotated_at ? now - arbiter->rotated_at : 0;
	arbiter->rotated_at = now;
	for (unsigned i = 0; i < arbiter->nvml.gpu_count; i++) {
		struct members members;
		if (find_members(arbiter, &arbiter->nvml.gpus[i], &members, now)) {
			count_time(&members, passed);
			waits |= rotate(arbiter, &arbiter->nvml.gpus[i], &members, now);
		}
		count_moving(arbiter, i, &members, passed);
		for (size_t k = 0; k < members.count; k++)
			moves |= parking_moves(members.grants[k]);
		free(members.all);
		free(members.grants);
		free(members.keep);
	}
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
		waits |= grant->parking.wanted_at != 0;
	if (moves || waits)
		loop_timer_set(&arbiter->loop, &arbiter->parking, now + (moves ? LOOK_NS : WAIT_NS));
}

void rotation_on_timer(struct timer *timer)
{
	rotation_update(CONTAINER(timer, struct arbiter, parking));
}

void rotation_ring(struct grant *grant, bool joins)
{
	if (parking_ring(grant, joins))
		rotation_update(grant->arbiter);
}

void rotation_write(const struct grant *grant, struct json *out)
{
	static const struct memory_turn_record none;
	const struct memory_turn_record *turn = grant->record ? &grant->record->turn : &none;
	uint64_t now_ns = turn->is_others ? loop_now() - turn->off_since_ns : 0;
	json_bool(out, "takes_turns", turn->takes);
	json_number(out, "swap_wait_ms", turn->wait_ms ? turn->wait_ms : SWAP_WAIT_MS);
	json_number(out, "turns_percent", grant->record ? grant->record->overcommit_percent : 0);
	json_bool(out, "off_turn", turn->is_others);
	json_number(out, "off_times", turn->times);
	json_number(out, "off_ns", turn->off_ns + now_ns);
	json_number(out, "longest_off_ns",
	            now_ns > turn->longest_off_ns ? now_ns : turn->longest_off_ns);
	if (turn->is_others)
		json_number(out, "off_for_ns", now_ns);
	else
		json_string(out, "off_for_ns", NULL);
}

void rotation_write_gpu(const struct arbiter *arbiter, unsigned gpu, struct json *out)
{
	json_number(out, "overcommit_percent", arbiter->overcommit_percent);
	json_number(out, "moving_permille", (uint64_t)(arbiter->moving[gpu] * 1000 + 0.5));
}
