/* What turns.c sees of the processes, and how it gives and takes: the pages of credit.h. */
#ifndef ARBITER_TURNS_WORK_H
#define ARBITER_TURNS_WORK_H

#include "turns_parts.h"

/* Look at a process's page: what it asked for, and how far its GPU is. */
void work_look(struct worker *worker, uint64_t now);

/* Whether the GPU has come to the end of all that the process has credit for. */
bool work_is_drained(const struct worker *worker);

/* How long what it has credit for and has not done should take. */
uint64_t work_in_hand(const struct worker *worker);

/* Write down what its quanta took since the last look, for the process to learn from. So many processes
 * of its slice shared the GPU since then; 0: others were there too, and nobody can tell. */
void work_time(struct worker *worker, uint64_t done_before, unsigned sharers, uint64_t now);

/* Credit for so much work beyond what is done, two quanta at least; but for none that would not be over
 * when somebody else is due, unless it is too long to be ever. Never takes any back. */
void work_give(struct worker *worker, uint64_t ahead_ns, const struct turns_due *due, uint64_t now);

/* Credit for so many quanta beyond what is done and no more. */
void work_limit(struct worker *worker, uint64_t quanta);

/* No credit for what it has not begun; it may have begun one quantum. */
void work_take_back(struct worker *worker);

void work_open(struct worker *worker);
void work_set_pace(struct worker *worker, enum aliquot_pace pace);
void work_set_ring(struct worker *worker, bool ring);
void work_set_quantum(struct worker *worker, uint32_t ns);

#endif
