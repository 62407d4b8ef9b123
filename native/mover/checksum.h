/* A checksum of the bytes of a copy, for builds and tests that compare them after each move. */
#ifndef MOVER_CHECKSUM_H
#define MOVER_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Each word counts by its value and its place. Bytes beyond the last whole word are not seen: copies are
 * whole pages. */
static inline uint64_t checksum(const void *bytes, size_t size)
{
	uint64_t sum = size;
	for (size_t at = 0; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
		uint64_t word;
		memcpy(&word, (const char *)bytes + at, sizeof(word));
		sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
		sum ^= sum >> 32;
	}
	return sum;
}

#endif
