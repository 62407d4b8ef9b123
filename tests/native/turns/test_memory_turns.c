/* Who has memory on the GPU and who leaves, on a simulated timeline: a move takes time by its bytes, and each slice
 * has on the GPU what it may. */
#include "memory_turns.h"

#include "../check.h"

#include <math.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)
#define SECOND UINT64_C(1000000000)
#define STEP (SECOND / 100)
#ifndef ROUNDS
#define ROUNDS 200u
#endif
#define MOST 8u
#define BYTES_PER_STEP (GIB / 2) /* 50 GiB/s */

struct slice {
	uint64_t used; /* of its limit, when all of it is there */
	uint64_t keep; /* while it leaves */
	double worked; /* seconds of the GPU */
	uint64_t longest_off, off_since, moved, turns;
	bool busy, has_begun; /* before its first turn it has no memory */
};

struct scene {
	struct memory_member members[MOST];
	struct slice slices[MOST];
	size_t count;
	uint64_t room, now, idle_steps, out_ns[MOST], in_ns[MOST], moves_since[MOST];
};

static uint64_t at_most(uint64_t value, uint64_t most)
{
	return value < most ? value : most;
}

static void add(struct scene *scene, uint64_t limit, uint64_t used, double weight)
{
	size_t i = scene->count++;
	scene->members[i] = (struct memory_member){
		.turn = MEMORY_OFF,
		.limit_bytes = limit,
		.since = scene->now,
		.wanted_at = scene->now,
		.wait_ns = 15 * SECOND,
		.weight = weight,
	};
	scene->slices[i] = (struct slice){.used = used, .off_since = scene->now, .busy = true};
}

static uint64_t exchange_ns(const struct scene *scene)
{
	uint64_t out = 0, in = 0;
	for (size_t i = 0; i < scene->count; i++) {
		out = scene->out_ns[i] > out ? scene->out_ns[i] : out;
		in = scene->in_ns[i] > in ? scene->in_ns[i] : in;
	}
	return out && in ? out + in : SECOND / 2;
}

/* What a slice has physically on the GPU, at most. */
static uint64_t has(const struct memory_member *member)
{
	return member->turn == MEMORY_OFF ? member->staying_bytes : member->limit_bytes;
}

static void check_room(const struct scene *scene)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < scene->count; i++)
		sum += has(&scene->members[i]);
	CHECK(sum <= scene->room);
}

static void move(struct scene *scene, size_t i)
{
	struct memory_member *member = &scene->members[i];
	struct slice *slice = &scene->slices[i];
	if (member
	        ->unwilling) { /* it is stopped on its way; after 2 s it has what it had, all of its limit */
		if (scene->now - scene->moves_since[i] < 2 * SECOND)
			return;
		member->turn = MEMORY_ON;
		member->since = scene->now;
		slice->has_begun = true;
		return;
	}
	bool leaves = member->turn == MEMORY_LEAVING;
	uint64_t goal = leaves ? at_most(slice->keep, slice->used) : slice->has_begun ? slice->used : 0;
	uint64_t left = leaves ? member->staying_bytes - goal : goal - member->staying_bytes;
	uint64_t step = at_most(left, BYTES_PER_STEP);
	member->staying_bytes += leaves ? -step : step;
	slice->moved += step;
	if (left > step)
		return;
	uint64_t took = scene->now - scene->moves_since[i] + STEP;
	if (leaves) {
		member->turn = MEMORY_OFF;
		member->since = slice->off_since;
		member->wanted_at = slice->busy ? scene->now : 0;
		scene->out_ns[i] = took;
	} else {
		uint64_t off = scene->now - slice->off_since;
		member->turn = MEMORY_ON;
		slice->has_begun = true;
		slice->turns++;
		member->since = scene->now;
		scene->in_ns[i] = took;
		slice->longest_off = off > slice->longest_off ? off : slice->longest_off;
	}
}

static void begin(struct scene *scene, size_t i, enum memory_turn turn)
{
	scene->members[i].turn = turn;
	scene->moves_since[i] = scene->now;
	if (turn == MEMORY_LEAVING) {
		scene->members[i].staying_bytes = scene->slices[i].used;
		scene->slices[i].off_since = scene->now;
	}
}

static void work(struct scene *scene)
{
	double sum = 0;
	for (size_t i = 0; i < scene->count; i++)
		if (scene->members[i].turn == MEMORY_ON && scene->slices[i].busy)
			sum += scene->members[i].weight;
	for (size_t i = 0; i < scene->count; i++)
		if (scene->members[i].turn == MEMORY_ON && scene->slices[i].busy)
			scene->slices[i].worked += 0.01 * scene->members[i].weight / sum;
	scene->idle_steps += sum == 0;
}

static void decide(struct scene *scene)
{
	uint64_t keep[MOST], used = 0, freed = 0;
	struct memory_plan plan = {.keep = keep};
	memory_turns_plan(scene->members, scene->count, scene->room, exchange_ns(scene), scene->now,
	                  &plan);
	for (size_t i = 0; i < scene->count; i++)
		used += has(&scene->members[i]);
	for (size_t i = 0; i < scene->count; i++) {
		const struct memory_member *member = &scene->members[i];
		if (keep[i] == MEMORY_STAYS)
			continue;
		CHECK(plan.waiting != MEMORY_NONE && !plan.returns && i != plan.waiting);
		CHECK(member->turn == MEMORY_ON || member->turn == MEMORY_OFF);
		CHECK(!member->refuses && keep[i] >= member->least_bytes && keep[i] < has(member));
		freed += has(member) - keep[i];
	}
	if (plan.waiting == MEMORY_NONE)
		return;
	const struct memory_member *waiter = &scene->members[plan.waiting];
	CHECK(waiter->turn == MEMORY_OFF && waiter->wanted_at);
	uint64_t needed = used - waiter->staying_bytes + waiter->limit_bytes;
	CHECK(plan.returns == (needed <= scene->room));
	if (freed) /* neither more nor less than is missing */
		CHECK(needed - freed == scene->room);
	if (plan.returns)
		begin(scene, plan.waiting, MEMORY_RETURNING);
	for (size_t i = 0; i < scene->count; i++) {
		if (keep[i] == MEMORY_STAYS)
			continue;
		scene->slices[i].keep = keep[i];
		if (scene->members[i].turn == MEMORY_ON)
			begin(scene, i, MEMORY_LEAVING);
		else
			scene->members[i].staying_bytes = keep[i]; /* in no time, here */
	}
}

static void run_step(struct scene *scene)
{
	for (size_t i = 0; i < scene->count; i++)
		if (scene->members[i].turn == MEMORY_LEAVING || scene->members[i].turn == MEMORY_RETURNING)
			move(scene, i);
	memory_turns_serve(scene->members, scene->count, STEP);
	work(scene);
	decide(scene);
	check_room(scene);
	scene->now += STEP;
}

static void run(struct scene *scene, unsigned seconds)
{
	for (unsigned step = 0; step < seconds * 100; step++)
		run_step(scene);
}

static double all_work(const struct scene *scene)
{
	double sum = 0;
	for (size_t i = 0; i < scene->count; i++)
		sum += scene->slices[i].worked;
	return sum;
}

static void check_shares(const struct scene *scene, double within)
{
	double weights = 0;
	for (size_t i = 0; i < scene->count; i++)
		weights += scene->members[i].weight;
	for (size_t i = 0; i < scene->count; i++) {
		double share = scene->slices[i].worked / all_work(scene);
		double should = scene->members[i].weight / weights;
		if (fabs(share - should) > within)
			fprintf(stderr, "slice %zu of %zu has %.3f, should have %.3f\n", i, scene->count, share,
			        should);
		CHECK(fabs(share - should) <= within);
	}
}

static void check_off(const struct scene *scene)
{
	for (size_t i = 0; i < scene->count; i++)
		CHECK(scene->slices[i].longest_off <= 15 * SECOND);
}

/* Two of 80 GiB on a GPU of 140. */
static void test_two(void)
{
	struct scene scene = {.room = 139 * GIB, .now = SECOND};
	add(&scene, 80 * GIB, 78 * GIB, 50);
	add(&scene, 80 * GIB, 78 * GIB, 50);
	run(&scene, 1000);
	check_shares(&scene, 0.01);
	check_off(&scene);
	CHECK(all_work(&scene) > 0.93 * 1000);
	/* Not all of it, each time: an exchange takes 26 s or more. */
	CHECK(scene.slices[0].moved < 1000 / 26 * 2 * 22 * GIB);
}

/* Three of 60: two have room at a time, and the GPU is never idle once all are there. */
static void test_three(void)
{
	struct scene scene = {.room = 139 * GIB, .now = SECOND};
	for (unsigned i = 0; i < 3; i++)
		add(&scene, 60 * GIB, 58 * GIB, 33);
	run(&scene, 1000);
	check_shares(&scene, 0.01);
	check_off(&scene);
	CHECK(all_work(&scene) > 0.98 * 1000);
}

static void test_weights(void)
{
	struct scene scene = {.room = 139 * GIB, .now = SECOND};
	add(&scene, 80 * GIB, 70 * GIB, 70);
	add(&scene, 80 * GIB, 70 * GIB, 30);
	run(&scene, 1000);
	check_shares(&scene, 0.01);
	check_off(&scene);
}

static uint64_t random_below(uint64_t most)
{
	static uint64_t state = 88172645463325252u;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % most;
}

/* Ten rounds of a slice, from the begin of its turn to the begin of its eleventh, whenever that is. */
static void check_ten_rounds(struct scene *scene, size_t which, double within)
{
	double before[MOST], sum = 0, weights = 0;
	for (uint64_t had = scene->slices[which].turns; scene->slices[which].turns == had;)
		run_step(scene);
	for (size_t i = 0; i < scene->count; i++)
		before[i] = scene->slices[i].worked;
	for (uint64_t had = scene->slices[which].turns; scene->slices[which].turns < had + 10;)
		run_step(scene);
	for (size_t i = 0; i < scene->count; i++) {
		sum += scene->slices[i].worked - before[i];
		weights += scene->members[i].weight;
	}
	for (size_t i = 0; i < scene->count; i++) {
		double share = (scene->slices[i].worked - before[i]) / sum;
		double should = scene->members[i].weight / weights;
		if (fabs(share - should) > within)
			fprintf(stderr, "slice %zu of %zu had %.3f in ten rounds, should have %.3f\n", i,
			        scene->count, share, should);
		CHECK(fabs(share - should) <= within);
	}
}

/* Where windows are longer than exchanges: otherwise nobody is off for too long, whatever the shares are. */
static void test_ten_rounds(void)
{
	for (unsigned round = 0; round < 30; round++) {
		struct scene scene = {.room = 139 * GIB, .now = SECOND};
		size_t count = 2 + random_below(2);
		for (size_t i = 0; i < count; i++) {
			uint64_t limit = (count == 2 ? 72 + random_below(20) : 50 + random_below(18)) * GIB;
			add(&scene, limit, limit - random_below(5 * GIB),
			    round % 2 ? 50 : (double)(35 + random_below(30)));
		}
		run(&scene, 30 + (unsigned)random_below(90)); /* the first turns are shorter or longer */
		for (size_t which = 0; which < count; which++)
			check_ten_rounds(&scene, which, 0.01);
	}
}

/* One that has nothing to do gives way at once and waits for nobody; one that refuses stays. */
static void test_idle_and_refusing(void)
{
	struct scene scene = {.room = 100 * GIB, .now = SECOND};
	add(&scene, 80 * GIB, 70 * GIB, 50);
	add(&scene, 80 * GIB, 70 * GIB, 50);
	run(&scene, 1);
	CHECK(scene.members[0].turn != scene.members[1].turn);
	size_t on = scene.members[0].turn == MEMORY_ON || scene.members[0].turn == MEMORY_RETURNING ? 0
	                                                                                            : 1;
	run(&scene, 2);
	scene.members[on].refuses = true;
	run(&scene, 60);
	CHECK(scene.members[on].turn == MEMORY_ON);
	scene.members[on].refuses = false;
	scene.members[on].idle = true;
	scene.slices[on].busy = false;
	run(&scene, 4);
	CHECK(scene.members[on].turn == MEMORY_OFF && scene.members[1 - on].turn == MEMORY_ON);
	run(&scene, 60);
	CHECK(scene.members[1 - on].turn == MEMORY_ON);
}

/* One that never fits keeps nobody waiting. */
static void test_hopeless(void)
{
	struct scene scene = {.room = 100 * GIB, .now = SECOND};
	add(&scene, 99 * GIB, 70 * GIB, 50);
	add(&scene, 80 * GIB, 70 * GIB, 50);
	scene.members[1].least_bytes = 2 * GIB;
	run(&scene, 30);
	CHECK(scene.members[0].turn == MEMORY_OFF && scene.members[1].turn == MEMORY_ON);
}

/* Whatever their sizes and weights: nothing exceeds the room, all that fit work, and nobody is forgotten. */
static void test_any(void)
{
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct scene scene = {.room = (20 + random_below(120)) * GIB, .now = SECOND};
		size_t count = 2 + random_below(MOST - 2);
		for (size_t i = 0; i < count; i++) {
			uint64_t limit = (1 + random_below(scene.room / GIB - count)) * GIB;
			add(&scene, limit, limit - random_below(limit / 2), (double)(5 + random_below(40)));
			scene.members[i].least_bytes = at_most(scene.slices[i].used, GIB / 2);
			if (i == 0 && round % 8 == 0) /* nothing of it can leave */
				scene.members[i].least_bytes = limit;
		}
		/* What cannot leave appears with the first turn. */
		run(&scene, 240);
		for (size_t i = 0; i < count && round % 8; i++)
			CHECK(scene.slices[i].worked > 0);
	}
}

/* --- one that waits for others who give nothing ------------------------------------------------- */

static struct memory_member member_on(uint64_t limit, uint64_t least)
{
	return (struct memory_member){.turn = MEMORY_ON,
	                              .limit_bytes = limit,
	                              .least_bytes = least,
	                              .wait_ns = 15 * SECOND,
	                              .weight = 50};
}

static struct memory_member member_off(uint64_t limit, uint64_t staying, bool waits)
{
	return (struct memory_member){.turn = MEMORY_OFF,
	                              .limit_bytes = limit,
	                              .staying_bytes = staying,
	                              .wanted_at = waits ? SECOND : 0,
	                              .wait_ns = 15 * SECOND,
	                              .weight = 50};
}

static void test_blocked(void)
{
	struct memory_member members[3] = {member_on(80, 2), member_off(80, 0, true),
	                                   member_off(40, 0, false)};
	CHECK(!memory_turns_is_blocked(members, 3, 100, 1)); /* its turn has not come */
	members[0].refuses = true;
	CHECK(!memory_turns_is_blocked(members, 3, 100, 1)); /* NVML was silent, for example */
	members[0].unwilling = true;
	CHECK(memory_turns_is_blocked(members, 3, 100, 1));
	CHECK(memory_turns_to_end(members, 3, 100, 1) == MEMORY_NONE);
	members[0].may_be_ended = true;
	CHECK(memory_turns_to_end(members, 3, 100, 1) == 0);
	/* Memory of another is on its way, and would be enough. */
	members[0].limit_bytes = 15;
	members[2] = member_on(70, 1);
	members[2].turn = MEMORY_LEAVING;
	CHECK(!memory_turns_is_blocked(members, 3, 100, 1));
	members[2].unwilling = true; /* stopped on the way */
	CHECK(memory_turns_is_blocked(members, 3, 100, 1));
	CHECK(memory_turns_to_end(members, 3, 100, 1) == MEMORY_NONE); /* it would not be enough */
	members[2].may_be_ended = true;
	CHECK(memory_turns_to_end(members, 3, 100, 1) == 2);
	/* What an OFF one has left on the GPU and does not give. */
	members[0] = member_on(10, 1);
	members[2] = member_off(80, 30, false);
	members[2].least_bytes = 1;
	CHECK(!memory_turns_is_blocked(members, 3, 100, 1));
	members[2].unwilling = true;
	CHECK(memory_turns_is_blocked(members, 3, 100, 1));
	/* It would not fit either if all gave what they can: it waits as ever. */
	members[0].least_bytes = 30;
	CHECK(!memory_turns_is_blocked(members, 3, 100, 1));
}

/* Nobody waits for one that refuses while others can be served. */
static void test_others_go_on(void)
{
	struct scene scene = {.room = 100 * GIB, .now = SECOND};
	add(&scene, 40 * GIB, 30 * GIB, 33);
	add(&scene, 55 * GIB, 50 * GIB, 33);
	add(&scene, 55 * GIB, 50 * GIB, 33);
	add(&scene, 90 * GIB, 80 * GIB, 33);
	run(&scene, 1);
	scene.members[0].turn = MEMORY_ON;
	scene.members[0].refuses = true;
	double before[2] = {scene.slices[1].worked, scene.slices[2].worked};
	run(&scene, 120);
	CHECK(scene.members[0].turn == MEMORY_ON && scene.slices[3].worked < 20);
	for (size_t i = 0; i < 2; i++)
		CHECK(scene.slices[1 + i].worked - before[i] > 20);
}

/* Whatever there is: who is blocked lacks room for unwilling ones alone, and only one that may be ended is. */
static void test_any_blocked(void)
{
	unsigned seen = 0, ended = 0;
	for (unsigned round = 0; round < 5000; round++) {
		struct memory_member members[MOST];
		size_t count = 2 + random_below(MOST - 2), waiting = random_below(count);
		uint64_t room = 50 + random_below(100), willing = 0, all = 0;
		for (size_t i = 0; i < count; i++) {
			uint64_t limit = 1 + random_below(80), least = random_below(limit / 4 + 1);
			members[i] = member_on(limit, least);
			members[i].turn = (enum memory_turn)random_below(4);
			members[i].staying_bytes = least + random_below(limit - least + 1);
			members[i].unwilling = random_below(3) == 0;
			members[i].may_be_ended = random_below(2);
		}
		members[waiting] = member_off(members[waiting].limit_bytes, 0, true);
		for (size_t i = 0; i < count; i++) {
			uint64_t least = i == waiting ? members[i].limit_bytes : members[i].least_bytes;
			all += least;
			willing += i != waiting && members[i].unwilling ? has(&members[i]) : least;
		}
		bool blocked = memory_turns_is_blocked(members, count, room, waiting);
		CHECK(blocked == (willing > room && all <= room));
		size_t end = memory_turns_to_end(members, count, room, waiting);
		seen += blocked;
		if (!blocked || end == MEMORY_NONE)
			continue;
		ended++;
		CHECK(end != waiting && members[end].unwilling && members[end].may_be_ended);
		/* Ending one after the other, it is not blocked in the end. */
		for (size_t i = 0; i < count && blocked; i++) {
			end = memory_turns_to_end(members, count, room, waiting);
			CHECK(end != MEMORY_NONE);
			members[end].limit_bytes = members[end].staying_bytes = members[end].least_bytes = 0;
			members[end].unwilling = members[end].may_be_ended = false;
			blocked = memory_turns_is_blocked(members, count, room, waiting);
		}
		CHECK(!blocked);
	}
	CHECK(seen > 100 && ended > 20);
}

/* Programs are stopped and go on at any time, also on their way. Nothing exceeds the room, nobody waits for one that is
 * stopped while others could be served, and in the end everybody is. */
static void test_stopped_at_any_time(void)
{
	unsigned blocked_seen = 0;
	for (unsigned round = 0; round < 15; round++) {
		struct scene scene = {.room = 139 * GIB, .now = SECOND};
		size_t count = 2 + random_below(3);
		for (size_t i = 0; i < count; i++) {
			uint64_t limit = (40 + random_below(70)) * GIB;
			add(&scene, limit, limit - random_below(limit / 4), (double)(20 + random_below(40)));
			scene.members[i].least_bytes = GIB / 2;
		}
		uint64_t until[MOST] = {0};
		for (unsigned step = 0; step < 12000; step++) {
			for (size_t i = 0; i < count; i++) {
				bool has_any = scene.members[i].turn != MEMORY_OFF;
				if (has_any && scene.now >= until[i] && random_below(1500) == 0)
					until[i] = scene.now + random_below(20 * SECOND);
				scene.members[i].unwilling = scene.members[i].refuses = scene.now < until[i];
			}
			run_step(&scene);
			for (size_t i = 0; i < count; i++)
				if (scene.members[i].turn == MEMORY_OFF && scene.members[i].wanted_at)
					blocked_seen += memory_turns_is_blocked(scene.members, count, scene.room, i);
		}
		double before[MOST];
		for (size_t i = 0; i < count; i++) {
			scene.members[i].unwilling = scene.members[i].refuses = false;
			before[i] = scene.slices[i].worked;
		}
		run(&scene, 120);
		for (size_t i = 0; i < count; i++)
			CHECK(scene.slices[i].worked > before[i]);
	}
	CHECK(blocked_seen > 300);
}

int main(void)
{
	test_two();
	test_three();
	test_weights();
	test_idle_and_refusing();
	test_hopeless();
	test_ten_rounds();
	test_any();
	test_blocked();
	test_others_go_on();
	test_any_blocked();
	test_stopped_at_any_time();
	return 0;
}
