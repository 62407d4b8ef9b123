#include "memory_turns.h"

#include "loop.h"

#define COST 25u /* a window is so many exchanges long: they take 4 % of the time */
#define LEAST_EXCHANGES 3u
#define LEAST_WINDOW_NS SECOND_NS
/* A smaller part of the GPU has windows as if it had this: it would be on too briefly. */
#define LEAST_PART 0.1

/* How long it may be off, less what moves may take longer than the last time. */
static uint64_t longest_off(uint64_t wait_ns)
{
	return wait_ns - wait_ns / 32;
}

/* Whether it needs the GPU now. */
static bool is_busy(const struct memory_member *member)
{
	return member->turn == MEMORY_OFF ? member->wanted_at != 0 : !member->idle;
}

static uint64_t more_than(uint64_t value, uint64_t other)
{
	return value > other ? value - other : 0;
}

struct pace {
	uint64_t window_ns, shortest_ns; /* of a window, if nobody is overdue and if one is */
	uint64_t exchange_ns, now;
	double lead; /* by so much one that leaves was served more than the one that returns */
};

static struct pace find_pace(const struct memory_member *members, size_t count,
                             uint64_t exchange_ns, uint64_t now)
{
	double sum = 0, least = 0;
	uint64_t wait = UINT64_MAX, shortest = LEAST_EXCHANGES * exchange_ns;
	for (size_t i = 0; i < count; i++) {
		if (!is_busy(&members[i]))
			continue;
		sum += members[i].weight;
		if (least == 0 || members[i].weight < least)
			least = members[i].weight;
		if (members[i].wait_ns < wait)
			wait = members[i].wait_ns;
	}
	double part = sum > 0 ? least / sum : 1;
	part = part < LEAST_PART ? LEAST_PART : part;
	uint64_t cheap = COST * exchange_ns, window_ns = cheap;
	/* While the smallest part is on for a window, the others are off; then it is off for theirs. */
	if (part < 1) {
		double longest = (double)more_than(longest_off(wait), 2 * exchange_ns) * part / (1 - part);
		window_ns = longest < (double)cheap ? (uint64_t)longest : cheap;
	}
	shortest = shortest < wait / 2 ? shortest : wait / 2;
	shortest = shortest > LEAST_WINDOW_NS ? shortest : LEAST_WINDOW_NS;
	window_ns = window_ns > shortest ? window_ns : shortest;
	return (struct pace){
		.window_ns = window_ns,
		.shortest_ns = shortest,
		.exchange_ns = exchange_ns,
		.now = now,
		.lead = sum > 0 ? (double)window_ns / sum : 0,
	};
}

/* What the member has of the room. */
static uint64_t has(const struct memory_member *member)
{
	return member->turn == MEMORY_OFF ? member->staying_bytes : member->limit_bytes;
}

static bool is_overdue(const struct memory_member *member, const struct pace *pace)
{
	return pace->now - member->since + pace->exchange_ns >= longest_off(member->wait_ns);
}

/* Whether the first comes before the second. */
static bool is_before(const struct memory_member *one, const struct memory_member *other,
                      const struct pace *pace)
{
	bool overdue = is_overdue(one, pace);
	if (overdue != is_overdue(other, pace))
		return overdue;
	if (!overdue && one->served != other->served)
		return one->served < other->served;
	return one->since < other->since;
}

/* What all others have left when they have given what they can; `gives_nothing` says who does not. */
static uint64_t others_least(const struct memory_member *members, size_t count, size_t waiting,
                             bool (*gives_nothing)(const struct memory_member *member))
{
	uint64_t sum = 0;
	for (size_t i = 0; i < count; i++)
		if (i != waiting)
			sum += gives_nothing(&members[i]) ? has(&members[i]) : members[i].least_bytes;
	return sum;
}

static bool refuses(const struct memory_member *member)
{
	return member->refuses;
}

static bool is_unwilling(const struct memory_member *member)
{
	return member->unwilling;
}

static bool gives(const struct memory_member *member)
{
	(void)member;
	return false;
}

static bool fits_beside(uint64_t others, const struct memory_member *one, uint64_t room_bytes)
{
	return others <= room_bytes && one->limit_bytes <= room_bytes - others;
}

/* One that would not fit if all others left as far as they can now waits, and keeps nobody waiting. */
static size_t find_waiting(const struct memory_member *members, size_t count, uint64_t room_bytes,
                           const struct pace *pace)
{
	size_t first = MEMORY_NONE;
	for (size_t i = 0; i < count; i++) {
		const struct memory_member *one = &members[i];
		if (one->turn == MEMORY_OFF && one->wanted_at &&
		    fits_beside(others_least(members, count, i, refuses), one, room_bytes) &&
		    (first == MEMORY_NONE || is_before(one, &members[first], pace)))
			first = i;
	}
	return first;
}

static bool may_leave(const struct memory_member *member, const struct memory_member *waiter,
                      const struct pace *pace)
{
	uint64_t been = pace->now - member->since;
	if (member->turn != MEMORY_ON || member->refuses || member->limit_bytes <= member->least_bytes)
		return false;
	if (member->idle)
		return true;
	if (is_overdue(waiter, pace))
		return been >= pace->shortest_ns;
	return been >= pace->window_ns && member->served >= waiter->served + pace->lead;
}

/* The next to leave of those that may and do not leave yet. */
static size_t find_to_leave(const struct memory_member *members, size_t count,
                            const struct memory_member *waiter, const struct memory_plan *plan,
                            const struct pace *pace)
{
	size_t first = MEMORY_NONE;
	for (size_t i = 0; i < count; i++) {
		const struct memory_member *one = &members[i];
		const struct memory_member *best = first == MEMORY_NONE ? one : &members[first];
		if (plan->keep[i] != MEMORY_STAYS || !may_leave(one, waiter, pace))
			continue;
		bool comes_first = first == MEMORY_NONE ||
		                   (one->idle != best->idle ? one->idle : one->served > best->served);
		if (comes_first)
			first = i;
	}
	return first;
}

/* Has a member keep less, as far as that helps. */
static void take(const struct memory_member *member, uint64_t *keep, uint64_t *missing)
{
	uint64_t most = more_than(has(member), member->least_bytes);
	uint64_t taken = most < *missing ? most : *missing;
	*missing -= taken;
	if (taken)
		*keep = has(member) - taken;
}

void memory_turns_plan(const struct memory_member *members, size_t count, uint64_t room_bytes,
                       uint64_t exchange_ns, uint64_t now, struct memory_plan *out)
{
	uint64_t used = 0, to_come = 0;
	struct pace pace = find_pace(members, count, exchange_ns, now);
	out->window_ns = pace.window_ns;
	out->waiting = find_waiting(members, count, room_bytes, &pace);
	out->returns = false;
	bool moves = false;
	for (size_t i = 0; i < count; i++) {
		out->keep[i] = MEMORY_STAYS;
		used += has(&members[i]);
		moves |= members[i].turn == MEMORY_LEAVING || members[i].turn == MEMORY_RETURNING;
		if (i != out->waiting && members[i].turn == MEMORY_OFF && !members[i].refuses)
			to_come += more_than(members[i].staying_bytes, members[i].least_bytes);
	}
	if (out->waiting == MEMORY_NONE)
		return;
	const struct memory_member *waiter = &members[out->waiting];
	uint64_t needed = used - waiter->staying_bytes + waiter->limit_bytes;
	out->returns = needed <= room_bytes;
	if (out->returns || moves) /* one exchange at a time: others work meanwhile */
		return;
	uint64_t missing = needed - room_bytes;
	while (missing > to_come) {
		size_t next = find_to_leave(members, count, waiter, out, &pace);
		if (next == MEMORY_NONE)
			break;
		take(&members[next], &out->keep[next], &missing);
	}
	if (missing > to_come) { /* nobody leaves in vain */
		for (size_t i = 0; i < count; i++)
			out->keep[i] = MEMORY_STAYS;
		return;
	}
	for (size_t i = 0; missing && i < count; i++)
		if (i != out->waiting && members[i].turn == MEMORY_OFF && !members[i].refuses)
			take(&members[i], &out->keep[i], &missing);
}

void memory_turns_serve(struct memory_member *members, size_t count, uint64_t passed_ns)
{
	double sum = 0;
	for (size_t i = 0; i < count; i++)
		if (members[i].turn == MEMORY_ON && !members[i].idle)
			sum += members[i].weight;
	for (size_t i = 0; i < count; i++)
		if (members[i].turn == MEMORY_ON && !members[i].idle)
			members[i].served += (double)passed_ns / sum;
}

double memory_turns_newcomer(const struct memory_member *members, size_t count, size_t newcomer)
{
	double least = -1;
	for (size_t i = 0; i < count; i++)
		if (i != newcomer && is_busy(&members[i]) && (least < 0 || members[i].served < least))
			least = members[i].served;
	return least > members[newcomer].served ? least : members[newcomer].served;
}

bool memory_turns_is_blocked(const struct memory_member *members, size_t count, uint64_t room_bytes,
                             size_t waiting)
{
	const struct memory_member *one = &members[waiting];
	return !fits_beside(others_least(members, count, waiting, is_unwilling), one, room_bytes) &&
	       fits_beside(others_least(members, count, waiting, gives), one, room_bytes);
}

size_t memory_turns_to_end(const struct memory_member *members, size_t count, uint64_t room_bytes,
                           size_t waiting)
{
	const struct memory_member *one = &members[waiting];
	uint64_t others = others_least(members, count, waiting, is_unwilling), all = 0;
	size_t smallest = MEMORY_NONE, largest = MEMORY_NONE;
	for (size_t i = 0; i < count; i++) {
		if (i == waiting || !members[i].unwilling || !members[i].may_be_ended)
			continue;
		uint64_t its = has(&members[i]);
		all += its;
		if (fits_beside(others - its, one, room_bytes) &&
		    (smallest == MEMORY_NONE || its < has(&members[smallest])))
			smallest = i;
		if (largest == MEMORY_NONE || its > has(&members[largest]))
			largest = i;
	}
	if (!fits_beside(others - all, one, room_bytes))
		return MEMORY_NONE;
	return smallest != MEMORY_NONE ? smallest : largest;
}
