/* The command line. */
#ifndef ARBITER_OPTIONS_H
#define ARBITER_OPTIONS_H

#include <stdbool.h>

/* Exit codes. */
enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_LOCKED = 3 };

struct options {
	const char *state;
	const char *nvml;
	unsigned linger_seconds; /* 0: for ever */
	bool foreground;
};

/* -1: go on; otherwise exit with that code (what is wrong has been said). */
int options_parse(int argc, char **argv, struct options *out);

#endif
