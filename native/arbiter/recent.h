/* How long a slice held its GPU, in all and lately: samples of about the last second.
 *
 * While turns are taken, turns.h counts that time. A slice that is alone is not looked at: then it
 * is taken to have held the GPU from one look of ours to the next if it launched something between
 * them, since its gates stood open and nobody else was there. Looks come at least twice a second,
 * and whenever that changes.
 */
#ifndef ARBITER_RECENT_H
#define ARBITER_RECENT_H

#include <stdbool.h>
#include <stdint.h>

#define RECENT_SAMPLES 16u

struct recent {
	struct {
		uint64_t at, held_ns;
	} samples[RECENT_SAMPLES];
	unsigned taken; /* ever; the newest is at (taken - 1) % SAMPLES */
	bool alone;     /* since the last look */
	uint64_t looked_at, launches;
	uint64_t alone_ns; /* it held the GPU without turns */
};

/* What a look sees. */
struct recent_view {
	bool alone;       /* it has work, and nobody contends */
	uint64_t held_ns; /* as turns count it */
	uint64_t launches;
};

/* What came of it. */
struct recent_held {
	uint64_t all_ns;
	uint64_t lately_ns, of_ns; /* so much of about the last second */
};

void recent_look(struct recent *recent, const struct recent_view *view, uint64_t now);
struct recent_held recent_read(const struct recent *recent, const struct recent_view *view,
                               uint64_t now);

#endif
