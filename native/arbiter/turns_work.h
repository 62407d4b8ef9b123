/* Internal to turns.h: reading the work page of a process and writing its credit page.
 *
 * work_look is the only reader of a work page (aliquot_work_read), and keeps what it read in
 * worker->view. Credit pages are only written: what was given is in the worker.
 */
#ifndef ARBITER_TURNS_WORK_H
#define ARBITER_TURNS_WORK_H

#include "turns_parts.h"

/* Connects it with its pages, and opens its gates. */
void work_connect(struct worker *worker, const struct aliquot_work_slice *work,
                  struct aliquot_credit_slice *credit, uint64_t now);

/* Starts over: what its process did unobserved is not counted. */
void work_reset(struct worker *worker, uint64_t now);

/* Reads the work page: what the process has queued, and how far its GPU is. */
void work_look(struct worker *worker, uint64_t now);

/* Whether gates cannot hold its work: its self-test failed, or its page is impossible. It is not
 * observed any more, and it gets no credit: gates that it has inserted all the same stay closed. */
bool work_is_unheld(const struct worker *worker);

/* Whether the GPU has finished all quanta that the process has credit for. */
bool work_is_drained(const struct worker *worker);

/* An estimate of the time for unfinished quanta that it has credit for. */
uint64_t work_in_hand(const struct worker *worker);

/* Writes down how long its quanta took since the last look, for the process to learn from. `sharers`
 * processes shared the GPU; 0: others that were not counted did too, and the time is unknown. */
void work_time(struct worker *worker, uint64_t done_before, unsigned sharers, uint64_t now);

/* Gives credit for ahead_ns of work beyond what is done, at least two quanta. Gives none for a quantum
 * that would not be done when a latency contender is due, unless it is too long for any gap. Never
 * takes credit back. */
void work_give(struct worker *worker, uint64_t ahead_ns, const struct turns_due *due, uint64_t now);

/* Gives nothing now; that it runs out of credit does not mean that its estimates are wrong. */
void work_hold_back(struct worker *worker);

/* Sets the credit to exactly so many quanta beyond what is done. */
void work_limit(struct worker *worker, uint64_t quanta);

/* Takes back credit for quanta that have not started; one may have. */
void work_take_back(struct worker *worker);

void work_open(struct worker *worker);
void work_set_pace(struct worker *worker, enum aliquot_pace pace);
void work_set_ring(struct worker *worker, bool ring);
void work_set_quantum(struct worker *worker, uint32_t ns);

#endif
