/* Carrying this process's pieces to the host and back: the conversation with the mover (aliquot/move.h).
 *
 * A piece is HERE, AWAY (no memory on the GPU, a copy in the arena), or EMPTY (memory on the GPU that is not yet
 * filled from the copy). Whatever fails, each piece is in one of these, and another call goes on from there. What is not
 * HERE is written to the work page (aliquot/credit.h: away_bytes) after each piece, so the arbiter sees progress.
 *
 * For the thread that moves memory alone. Precondition of all: residence.h is AWAY, but for carry_forget.
 */
#ifndef ALIQUOT_CARRY_H
#define ALIQUOT_CARRY_H

#include "aliquot/move.h"

#include <stdbool.h>
#include <stdint.h>

/* What a move is: a failure of aliquot/move.h, or one of these. */
enum carry_result {
	CARRY_DONE = 0,
	CARRY_CALLED_OFF = -1, /* carry_goes_on said so */
};

/* Whether to send more pieces: the arbiter has not changed its mind. */
typedef bool carry_goes_on(void);

/* Find out which pieces there are. Precondition: all are HERE. */
bool carry_list(void);

/* Choose which leave, by aliquot_slice_limits.leave_parts; those that are not HERE count. */
void carry_choose(uint32_t leave_parts);

/* Carry the chosen pieces to the host, or all back. Returns an enum carry_result or enum aliquot_move_failure. */
int carry_out(carry_goes_on *goes_on);
int carry_in(carry_goes_on *goes_on);

/* Bytes of all pieces that are not HERE. */
uint64_t carry_away_bytes(void);

/* Have the mover free its copies, if it has any. If it cannot be reached, it has them until the next call.
 * Precondition: all pieces are HERE. */
void carry_forget(void);

/* In a forked child, which has no pieces: close what is the parent's, and begin anew. */
void carry_forked(void);

#endif
