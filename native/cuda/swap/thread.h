/* Threads of ours in the program's process. */
#ifndef ALIQUOT_THREAD_H
#define ALIQUOT_THREAD_H

#include <stdbool.h>

/* Start a thread that nobody joins, with all signals blocked: they are for the program's own threads. */
bool thread_start(void *(*run)(void *), void *argument);

#endif
