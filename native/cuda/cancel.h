/* Keeping a thread from being cancelled while others would wait for what it holds.
 *
 * A cancelled thread ends at the next call that may block (read, nanosleep, and many functions of
 * the driver), and whatever it holds stays held. */
#ifndef ALIQUOT_CANCEL_H
#define ALIQUOT_CANCEL_H

#include <pthread.h>

/* Until cancel_restore with the result, the calling thread is not cancelled. Calls may nest. */
static inline int cancel_disable(void)
{
	int before = PTHREAD_CANCEL_ENABLE;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void cancel_restore(int before)
{
	pthread_setcancelstate(before, NULL);
}

#endif
