/* How long a slice used its GPU, in all and in about the last second.
 *
 * While slices take turns, turns.h counts that time. A slice that has the GPU to itself is not
 * observed: it is taken to have used the GPU from one update to the next if it launched something in
 * between, since its gates were open and no other slice had work. Updates come at least twice a
 * second, and whenever the slice begins or ceases to be alone.
 */
#ifndef ARBITER_RECENT_USAGE_H
#define ARBITER_RECENT_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#define RECENT_USAGE_SAMPLES 16u

struct recent_usage {
	struct {
		uint64_t at, used_ns;
	} samples[RECENT_USAGE_SAMPLES];
	unsigned sample_count; /* ever; the newest is at (sample_count - 1) % SAMPLES */
	bool alone;            /* since the last update */
	uint64_t updated_at, launches;
	uint64_t alone_ns; /* GPU time without turns */
};

/* What the caller sees of the slice now. */
struct recent_observation {
	bool alone;       /* it has work, and no other slice does */
	uint64_t used_ns; /* as turns.h counts it */
	uint64_t launches;
};

struct recent_figures {
	uint64_t total_ns;
	uint64_t recent_ns, window_ns; /* recent_ns of the last window_ns, about a second */
};

void recent_usage_update(struct recent_usage *usage, const struct recent_observation *now_seen,
                         uint64_t now);
struct recent_figures recent_usage_read(const struct recent_usage *usage,
                                        const struct recent_observation *now_seen, uint64_t now);

#endif
