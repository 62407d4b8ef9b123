#include "recent_usage.h"

#include "loop.h"

#define UPDATE_NS (20 * MILLISECOND_NS) /* shorter intervals would fall between two launches */
#define SAMPLE_NS (100 * MILLISECOND_NS)
#define WINDOW_NS SECOND_NS

static void add_sample(struct recent_usage *usage, uint64_t used_ns, uint64_t now)
{
	unsigned newest = (usage->sample_count + RECENT_USAGE_SAMPLES - 1) % RECENT_USAGE_SAMPLES;
	if (usage->sample_count && now - usage->samples[newest].at < SAMPLE_NS)
		return;
	unsigned next = usage->sample_count++ % RECENT_USAGE_SAMPLES;
	usage->samples[next].at = now;
	usage->samples[next].used_ns = used_ns;
}

void recent_usage_update(struct recent_usage *usage, const struct recent_observation *now_seen,
                         uint64_t now)
{
	uint64_t since = now - usage->updated_at;
	if (usage->alone == now_seen->alone && since < UPDATE_NS)
		return;
	if (usage->alone && usage->launches != now_seen->launches)
		usage->alone_ns += since;
	usage->alone = now_seen->alone;
	usage->launches = now_seen->launches;
	usage->updated_at = now;
	add_sample(usage, now_seen->used_ns + usage->alone_ns, now);
}

struct recent_figures recent_usage_read(const struct recent_usage *usage,
                                        const struct recent_observation *now_seen, uint64_t now)
{
	struct recent_figures figures = {.total_ns = now_seen->used_ns + usage->alone_ns};
	uint64_t at = usage->alone ? usage->updated_at : now;
	unsigned count = usage->sample_count < RECENT_USAGE_SAMPLES ? usage->sample_count
	                                                            : RECENT_USAGE_SAMPLES;
	for (unsigned back = 1; back <= count; back++) {
		unsigned i = (usage->sample_count - back) % RECENT_USAGE_SAMPLES;
		figures.recent_ns = figures.total_ns - usage->samples[i].used_ns;
		figures.window_ns = at - usage->samples[i].at;
		if (figures.window_ns >= WINDOW_NS)
			break;
	}
	return figures;
}
