/* Checks of the invariants in gate.h, in sanitizer builds only (CMake: -DALIQUOT_SANITIZE=...).
 *
 * A release build runs inside a tenant's process and never aborts: there INVARIANT compiles to
 * nothing, and its condition is not evaluated. */
#ifndef ALIQUOT_GATE_INVARIANT_H
#define ALIQUOT_GATE_INVARIANT_H

#ifdef ALIQUOT_SANITIZE

#include <stdio.h>
#include <stdlib.h>

#define INVARIANT(condition)                                                                       \
	do {                                                                                           \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "%s:%d: invariant broken in %s: %s\n", __FILE__, __LINE__, __func__,   \
			        #condition);                                                                   \
			abort();                                                                               \
		}                                                                                          \
	} while (0)

#else

#define INVARIANT(condition) ((void)sizeof(!(condition)))

#endif

#endif
