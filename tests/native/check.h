/* The least a C test needs: a check that names itself and ends the test. */
#ifndef ALIQUOT_TEST_CHECK_H
#define ALIQUOT_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                           \
	do {                                                                                           \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
			exit(1);                                                                               \
		}                                                                                          \
	} while (0)

#endif
