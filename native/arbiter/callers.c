#include "callers.h"

#include <stddef.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_EACH 64u
#define REQUEST_NS 5000000u    /* 200 requests a second */
#define TIME_FACTOR 4u         /* a quarter of the time */
#define BURST_NS 2000000000ull /* and 400 at once */
#define GRANT_FACTOR 8u        /* an eighth of the time */
#define PAUSE_NS 100000000u    /* at least; all programs of the grant wait for so long */

bool callers_is_privileged(uint32_t uid)
{
	return uid == 0 || uid == geteuid();
}

/* The user's entry, or the one that was unused for longest. NULL: all have connections. */
static struct caller *entry_of(struct callers *callers, uint32_t uid)
{
	struct caller *oldest = NULL;
	for (size_t i = 0; i < CALLERS_MOST; i++) {
		struct caller *one = &callers->all[i];
		if (one->uid == uid && (one->connections || one->budget.used_until_ns))
			return one;
		if (!one->connections &&
		    (!oldest || one->budget.used_until_ns < oldest->budget.used_until_ns))
			oldest = one;
	}
	if (oldest)
		*oldest = (struct caller){.uid = uid};
	return oldest;
}

bool callers_connect(struct callers *callers, uint32_t uid, struct caller **out)
{
	*out = NULL;
	if (callers_is_privileged(uid))
		return true;
	struct caller *caller = entry_of(callers, uid);
	if (!caller || caller->connections >= CONNECTIONS_EACH || callers->connections >= CALLERS_MOST)
		return false;
	caller->connections++;
	callers->connections++;
	*out = caller;
	return true;
}

void callers_disconnect(struct callers *callers, struct caller *caller)
{
	if (!caller)
		return;
	caller->connections--;
	callers->connections--;
}

/* How far ahead of now the budget is used. */
static uint64_t ahead(struct budget *budget, uint64_t now_ns)
{
	if (budget->used_until_ns < now_ns)
		budget->used_until_ns = now_ns;
	return budget->used_until_ns - now_ns;
}

bool callers_request(struct caller *caller, uint64_t now_ns)
{
	if (!caller)
		return true;
	if (ahead(&caller->budget, now_ns) > BURST_NS)
		return false;
	caller->budget.used_until_ns += REQUEST_NS;
	return true;
}

void callers_charge(struct caller *caller, uint64_t spent_ns)
{
	if (caller)
		caller->budget.used_until_ns += spent_ns * TIME_FACTOR;
}

uint64_t callers_charge_grant(struct budget *budget, uint64_t spent_ns, uint64_t now_ns)
{
	uint64_t used = ahead(budget, now_ns) + spent_ns * GRANT_FACTOR;
	budget->used_until_ns = now_ns + used;
	return used > BURST_NS ? now_ns + (used - BURST_NS) + PAUSE_NS : 0;
}

uint64_t callers_time_ns(void)
{
	struct timespec used;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}
