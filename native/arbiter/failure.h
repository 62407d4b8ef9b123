/* Why a request failed: a code for programs, a sentence for people. */
#ifndef ARBITER_FAILURE_H
#define ARBITER_FAILURE_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

struct failure {
	uint32_t reader;  /* the user that gets to see it, if it is the answer to a request */
	const char *code; /* static text */
	char text[512];
};

/* Always false, so that a function can `return failure_set(...)`. */
__attribute__((format(printf, 3, 4))) static inline _Bool failure_set(struct failure *failure,
                                                                      const char *code,
                                                                      const char *format, ...)
{
	va_list args;
	va_start(args, format);
	failure->code = code;
	vsnprintf(failure->text, sizeof(failure->text), format, args);
	va_end(args);
	return 0;
}

/* The ending of a noun that is counted. */
static inline const char *plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

/* Bytes in MiB for people: capacity is rounded down, use and requests are rounded up, so that two
 * different amounts never look the same. */
static inline unsigned long long mib_of(uint64_t capacity)
{
	return capacity >> 20;
}

static inline unsigned long long mib_for(uint64_t wanted)
{
	return (wanted >> 20) + (wanted % (UINT64_C(1) << 20) != 0);
}

#endif
