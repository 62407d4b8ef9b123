/* Parses and writes the UUID of a GPU or of an instance. */
#include "aliquot/uuid.h"

#include <string.h>

static const char form[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
static const char instance_prefix[] = "MIG-";
#define PREFIX_LENGTH 4u

_Static_assert(sizeof(form) == ALIQUOT_UUID_TEXT_SIZE, "one form");

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

bool aliquot_uuid_parse(const char *text, size_t length, uint8_t uuid[16])
{
	if (length != ALIQUOT_UUID_TEXT_LENGTH)
		return false;
	unsigned digits = 0;
	if (memcmp(text, form, PREFIX_LENGTH) && memcmp(text, instance_prefix, PREFIX_LENGTH))
		return false;
	for (size_t i = PREFIX_LENGTH; i < length; i++) {
		if (form[i] != 'x') {
			if (text[i] != form[i])
				return false;
			continue;
		}
		int digit = digit_of(text[i]);
		if (digit < 0)
			return false;
		uint8_t *byte = &uuid[digits++ / 2];
		*byte = (uint8_t)(*byte << 4 | digit);
	}
	return true;
}

void aliquot_uuid_write(const uint8_t uuid[16], bool instance, char text[ALIQUOT_UUID_TEXT_SIZE])
{
	static const char digits[] = "0123456789abcdef";
	memcpy(text, form, ALIQUOT_UUID_TEXT_SIZE);
	if (instance)
		memcpy(text, instance_prefix, PREFIX_LENGTH);
	unsigned done = 0;
	for (size_t i = 0; i < ALIQUOT_UUID_TEXT_LENGTH; i++) {
		if (form[i] != 'x')
			continue;
		uint8_t byte = uuid[done / 2];
		text[i] = digits[done % 2 ? byte & 15 : byte >> 4];
		done++;
	}
}
