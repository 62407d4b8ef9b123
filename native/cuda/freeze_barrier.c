#include "freeze_barrier.h"

#include "session.h"
#include "swap/residence.h"

#include <time.h>

#define FROZEN_MS 20 /* between two looks of a thread that waits */

bool freeze_barrier_enter(void)
{
	static const struct timespec pause = {.tv_nsec = FROZEN_MS * 1000 * 1000};
	if (!session_is_open() || residence_matters())
		return false;
	/* Count first, then look: an arbiter that writes the hold and then sees a count of 0 knows that
	 * we will see the hold. */
	for (;;) {
		session_count_inside(1);
		if (atomic_load(&session_limits()->slices[0].grant_state) == ALIQUOT_GRANT_ACTIVE)
			return true;
		session_count_inside(-1);
		nanosleep(&pause, NULL);
	}
}

void freeze_barrier_leave(void)
{
	session_count_inside(-1);
}
