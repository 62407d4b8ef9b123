/* One line of the control protocol as a request: a pure function, and the only reader of that text.
 *
 *   status
 *   stop
 *   make name=NAME [kept=1] slice=UUID,memory=BYTES[,compute=PERCENT][,policy=WORD][,priority=WORD] ...
 *   resize name=NAME [gradual=1] slice=UUID[,memory=BYTES][,compute=PERCENT][,...] ...
 *   hold name=NAME as=taken|open|parked
 *   end name=NAME
 *
 * A slice to be resized names what is to change, at least one thing; the rest stays as it is.
 * Words are parted by exactly one space; each key comes once; numbers are decimal digits and
 * nothing else. What is not named is refused: a request is understood whole or not at all.
 */
#ifndef ARBITER_CONTROL_PARSE_H
#define ARBITER_CONTROL_PARSE_H

#include "aliquot/layout.h"

#include <stdbool.h>

#define CONTROL_LINE_MAX 4096u
#define CONTROL_LEAST_BYTES (UINT64_C(1) << 20)

enum control_kind {
	CONTROL_STATUS,
	CONTROL_STOP,
	CONTROL_MAKE, /* from here on: about a grant */
	CONTROL_RESIZE,
	CONTROL_HOLD,
	CONTROL_END,
};

/* What a slice names, a bit each. */
enum control_given {
	CONTROL_MEMORY = 1,
	CONTROL_COMPUTE = 2,
	CONTROL_POLICY = 4,
	CONTROL_PRIORITY = 8,
};

struct control_slice {
	uint8_t uuid[16];
	uint32_t given; /* of enum control_given; what is not given is 0 */
	uint64_t memory_bytes;
	uint32_t compute_percent;
	enum aliquot_policy policy;
	enum aliquot_priority priority;
};

struct control_request {
	enum control_kind kind;
	char name[ALIQUOT_NAME_SIZE];
	bool kept;    /* make: until `end`, whoever is in it */
	bool gradual; /* resize: as far as what is in use allows */
	bool has_hold;
	enum aliquot_hold hold; /* hold: what it is to be */
	uint32_t slice_count;
	struct control_slice slices[ALIQUOT_MAX_GPUS];
};

/* `line` without its newline. 0 and *out; or -1 and *error, a static text. */
int control_parse(const char *line, size_t len, struct control_request *out, const char **error);

/* [A-Za-z0-9][A-Za-z0-9._-]{0,62} */
int control_is_name(const char *text, size_t len);

#endif
