/* The command line. */
#ifndef ARBITER_OPTIONS_H
#define ARBITER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Exit codes. */
enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_LOCKED = 3 };

struct options {
	const char *state;
	const char *nvml;
	const char *cuda;    /* NULL: no memory can move */
	uint64_t host_bytes; /* of the host, for memory that has left its GPU; 0: as many as is usual */
	unsigned overcommit_percent; /* of a GPU's memory, for swappable slices together; 100 or more */
	const char *mps;             /* see mps.h; NULL: all */
	const char *users;           /* NULL: users have no limits */
	unsigned linger_seconds;     /* 0: never ends by itself */
	bool ends_unjoined;          /* see unjoined.h */
	bool pool_admits;            /* ordinary users cannot ask for grants: the pool asks for them */
	bool foreground;
	bool check; /* start nothing; `nvml` may be NULL */
};

/* -1: continue; otherwise exit with that code (the error has been printed). */
int options_parse(int argc, char **argv, struct options *out);

#endif
