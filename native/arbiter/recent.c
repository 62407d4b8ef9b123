#include "recent.h"

#include "loop.h"

#define LOOK_NS (20 * MILLISECOND_NS) /* closer looks would fall between two launches */
#define SAMPLE_NS (100 * MILLISECOND_NS)
#define WINDOW_NS SECOND_NS

static void take_sample(struct recent *recent, uint64_t held_ns, uint64_t now)
{
	unsigned newest = (recent->taken + RECENT_SAMPLES - 1) % RECENT_SAMPLES;
	if (recent->taken && now - recent->samples[newest].at < SAMPLE_NS)
		return;
	unsigned next = recent->taken++ % RECENT_SAMPLES;
	recent->samples[next].at = now;
	recent->samples[next].held_ns = held_ns;
}

void recent_look(struct recent *recent, const struct recent_view *view, uint64_t now)
{
	uint64_t since = now - recent->looked_at;
	if (recent->alone == view->alone && since < LOOK_NS)
		return;
	if (recent->alone && recent->launches != view->launches)
		recent->alone_ns += since;
	recent->alone = view->alone;
	recent->launches = view->launches;
	recent->looked_at = now;
	take_sample(recent, view->held_ns + recent->alone_ns, now);
}

struct recent_held recent_read(const struct recent *recent, const struct recent_view *view,
                               uint64_t now)
{
	struct recent_held held = {.all_ns = view->held_ns + recent->alone_ns};
	uint64_t at = recent->alone ? recent->looked_at : now;
	unsigned count = recent->taken < RECENT_SAMPLES ? recent->taken : RECENT_SAMPLES;
	for (unsigned back = 1; back <= count; back++) {
		unsigned i = (recent->taken - back) % RECENT_SAMPLES;
		held.lately_ns = held.all_ns - recent->samples[i].held_ns;
		held.of_ns = at - recent->samples[i].at;
		if (held.of_ns >= WINDOW_NS)
			break;
	}
	return held;
}
