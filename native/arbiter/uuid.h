/* A GPU's UUID: 16 bytes, written "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". */
#ifndef ARBITER_UUID_H
#define ARBITER_UUID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UUID_TEXT_LENGTH 40
#define UUID_TEXT_SIZE (UUID_TEXT_LENGTH + 1)

/* Exactly the form above, hexadecimal digits of either case. */
bool uuid_parse(const char *text, size_t length, uint8_t uuid[16]);
void uuid_write(const uint8_t uuid[16], char text[UUID_TEXT_SIZE]);

#endif
