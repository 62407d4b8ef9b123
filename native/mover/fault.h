/* Why a request failed: the code and the sentence of the answer (aliquot/move.h). */
#ifndef MOVER_FAULT_H
#define MOVER_FAULT_H

#include "aliquot/move.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

struct fault {
	enum aliquot_move_failure code;
	char text[sizeof(((struct aliquot_move *)0)->text)];
};

/* Always false, so that a function can return it. */
__attribute__((format(printf, 3, 4))) static inline bool fault_set(struct fault *fault,
                                                                   enum aliquot_move_failure code,
                                                                   const char *format, ...)
{
	va_list args;
	fault->code = code;
	va_start(args, format);
	vsnprintf(fault->text, sizeof(fault->text), format, args);
	va_end(args);
	return false;
}

static inline unsigned long long fault_mib(uint64_t bytes)
{
	return (bytes + (1u << 20) - 1) >> 20;
}

#endif
