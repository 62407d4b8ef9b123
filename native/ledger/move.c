/* Reads and makes the messages between a program and the mover. */
#include "aliquot/move.h"

#include <string.h>

int aliquot_move_read(const void *bytes, size_t size, struct aliquot_move *out)
{
	struct aliquot_move message;
	if (size != sizeof(message))
		return 0;
	memcpy(&message, bytes, sizeof(message));
	if (message.magic != ALIQUOT_MOVE_MAGIC || message.version != ALIQUOT_MOVE_VERSION ||
	    message.kind < ALIQUOT_MOVE_OUT || message.kind > ALIQUOT_MOVE_FORGET)
		return 0;
	/* All copies of a process can be forgotten; a piece has an address, and bytes to copy. */
	if (message.kind != ALIQUOT_MOVE_FORGET && (!message.piece || !message.bytes))
		return 0;
	*out = message;
	return 1;
}

struct aliquot_move aliquot_move_make(enum aliquot_move_kind kind, uint64_t piece, uint64_t bytes)
{
	return (struct aliquot_move){
		.magic = ALIQUOT_MOVE_MAGIC,
		.version = ALIQUOT_MOVE_VERSION,
		.kind = (uint16_t)kind,
		.piece = piece,
		.bytes = bytes,
	};
}
