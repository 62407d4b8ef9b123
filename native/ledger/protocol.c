/* Reads and makes the messages between a tenant and the arbiter. */
#include "aliquot/protocol.h"

#include <string.h>

enum aliquot_refusal aliquot_message_read(const void *bytes, size_t size,
                                          struct aliquot_message *out)
{
	struct aliquot_message message;
	if (size != sizeof(message))
		return ALIQUOT_REFUSED_MALFORMED;
	memcpy(&message, bytes, sizeof(message));
	if (message.magic != ALIQUOT_MESSAGE_MAGIC)
		return ALIQUOT_REFUSED_MALFORMED;
	if (message.version != ALIQUOT_PROTOCOL)
		return ALIQUOT_REFUSED_VERSION;
	if (message.kind < ALIQUOT_HELLO || message.kind > ALIQUOT_MOVER)
		return ALIQUOT_REFUSED_MALFORMED;
	if (!memchr(message.text, 0, sizeof(message.text)))
		return ALIQUOT_REFUSED_MALFORMED;
	*out = message;
	return 0;
}

struct aliquot_message aliquot_message_make(enum aliquot_kind kind, uint64_t value)
{
	struct aliquot_message message = {
		.magic = ALIQUOT_MESSAGE_MAGIC,
		.version = ALIQUOT_PROTOCOL,
		.kind = (uint16_t)kind,
		.value = value,
	};
	return message;
}
