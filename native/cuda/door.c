#include "door.h"

#include "session.h"

#include <time.h>

#define FROZEN_MS 20 /* between two looks of a thread that stands at the door */

bool door_enter(void)
{
	static const struct timespec moment = {.tv_nsec = FROZEN_MS * 1000 * 1000};
	if (!session_is_open())
		return false;
	/* In this order: who sees the count at 0 after the state was written knows that we will see it. */
	for (;;) {
		session_count_inside(1);
		if (atomic_load(&session_limits()->slices[0].grant_state) == ALIQUOT_GRANT_ACTIVE)
			return true;
		session_count_inside(-1);
		nanosleep(&moment, NULL);
	}
}

void door_leave(void)
{
	session_count_inside(-1);
}
