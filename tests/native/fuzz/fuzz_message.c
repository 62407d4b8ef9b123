/* aliquot_message_read: what it accepts is a whole message of a known kind with a text that
 * ends. */
#include "aliquot/protocol.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct aliquot_message message;
	memset(&message, 0xa5, sizeof(message));
	if (aliquot_message_read(data, size, &message))
		return 0;
	int sound = size == sizeof(message) && !memcmp(data, &message, size) &&
	            message.magic == ALIQUOT_MESSAGE_MAGIC && message.version == ALIQUOT_PROTOCOL &&
	            message.kind >= ALIQUOT_HELLO && message.kind <= ALIQUOT_MOVER &&
	            memchr(message.text, 0, sizeof(message.text));
	if (!sound)
		abort();
	return 0;
}
