/* CUDA_VISIBLE_DEVICES as the driver sees it during cuInit, while other threads use the environment.
 *
 * getenv takes no lock, and setenv and unsetenv move the list that it reads. So neither is used: one
 * entry of the list is exchanged, and if the program has no such entry, the list is replaced by a
 * longer copy that is never freed. A thread that reads the environment always finds a whole list,
 * and what it sets meanwhile stays set. Until environment_restore it also finds our value.
 *
 * One thread at a time may call these. */
#ifndef ALIQUOT_ENVIRONMENT_H
#define ALIQUOT_ENVIRONMENT_H

#define ENVIRONMENT_VISIBLE "CUDA_VISIBLE_DEVICES"

/* Set the variable to at most VISIBLE_SIZE characters. If there is no memory, it keeps its value. */
void environment_show(const char *value);

/* Undo what environment_show did in this process or its parent; if nothing, do nothing. */
void environment_restore(void);

#endif
