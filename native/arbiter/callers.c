#include "callers.h"

#include <stddef.h>
#include <unistd.h>

#define CONNECTIONS_EACH 64u
#define REQUEST_NS 5000000u    /* 200 requests a second */
#define TIME_FACTOR 4u         /* a quarter of the time */
#define BURST_NS 2000000000ull /* and 400 at once */

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
		if (one->uid == uid && (one->connections || one->used_until_ns))
			return one;
		if (!one->connections && (!oldest || one->used_until_ns < oldest->used_until_ns))
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

bool callers_request(struct caller *caller, uint64_t now_ns)
{
	if (!caller)
		return true;
	if (caller->used_until_ns < now_ns)
		caller->used_until_ns = now_ns;
	if (caller->used_until_ns - now_ns > BURST_NS)
		return false;
	caller->used_until_ns += REQUEST_NS;
	return true;
}

void callers_charge(struct caller *caller, uint64_t spent_ns)
{
	if (caller)
		caller->used_until_ns += spent_ns * TIME_FACTOR;
}
