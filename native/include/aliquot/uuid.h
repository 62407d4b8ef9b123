/* A GPU's UUID: 16 bytes, written "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". An instance of a GPU (MIG) has one
 * too, written "MIG-...": no GPU has the same 16 bytes. */
#ifndef ALIQUOT_UUID_H
#define ALIQUOT_UUID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ALIQUOT_UUID_TEXT_LENGTH 40
#define ALIQUOT_UUID_TEXT_SIZE (ALIQUOT_UUID_TEXT_LENGTH + 1)

/* Accepts exactly the forms above, with hexadecimal digits of either case. */
bool aliquot_uuid_parse(const char *text, size_t length, uint8_t uuid[16]);
void aliquot_uuid_write(const uint8_t uuid[16], bool instance, char text[ALIQUOT_UUID_TEXT_SIZE]);

/* Whether a valid text is that of an instance. */
static inline bool aliquot_uuid_is_instance(const char *text)
{
	return *text == 'M';
}

#endif
