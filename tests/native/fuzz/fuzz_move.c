/* aliquot_move_read: what it accepts is a whole request to the mover, with all that its kind needs. */
#include "aliquot/move.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct aliquot_move move;
	memset(&move, 0xa5, sizeof(move));
	if (!aliquot_move_read(data, size, &move))
		return 0;
	int is_move = move.kind == ALIQUOT_MOVE_OUT || move.kind == ALIQUOT_MOVE_IN;
	int sound = size == sizeof(move) && !memcmp(data, &move, size) &&
	            move.magic == ALIQUOT_MOVE_MAGIC && move.version == ALIQUOT_MOVE_VERSION &&
	            (is_move || move.kind == ALIQUOT_MOVE_FORGET) &&
	            (!is_move || (move.piece && move.bytes));
	if (!sound)
		abort();
	return 0;
}
