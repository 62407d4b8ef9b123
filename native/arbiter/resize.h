/* A grant's slices changed while its programs run.
 *
 * All that is asked or nothing: what can be refused comes first, and a limit that was lowered is put
 * back where the next cannot be. Memory changes at once, compute at the next window.
 *
 * Memory that grows must be left on the GPU. A parked grant's must only be on it: whether it is left
 * is asked when the grant comes back (hold.h). Memory that shrinks below what is in use is refused;
 * or, gradually, becomes what is in use now, so that what the program frees does not come back to
 * it, and whoever asked asks again.
 */
#ifndef ARBITER_RESIZE_H
#define ARBITER_RESIZE_H

#include "grants.h"

struct resized {
	struct {
		uint64_t memory_bytes;  /* the limit now */
		bool reached;           /* it is what was asked for */
	} slices[ALIQUOT_MAX_GPUS]; /* as in the request */
};

/* For a peer of that uid. */
bool resize(struct arbiter *arbiter, const struct control_request *request, uint32_t uid,
            struct resized *out, struct failure *failure);

#endif
