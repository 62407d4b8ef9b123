/* Parses one line of the control protocol: a pure function, and the only reader of that text.
 *
 *   status
 *   stop
 *   replace
 *   may-end
 *   limits
 *   read-users
 *   make name=NAME [kept=1 [pid=PID started=TICKS]] [together=NAME] [label=NAME] [apart=NAME,...] [alone=1]
 *        [swap=1 [park-after=MILLISECONDS [park-if=wanted]]] [spill=BYTES] [mps=1]
 *        [owner=UID [pid=PID started=TICKS]]
 *        slice=UUID,memory=BYTES[,compute=PERCENT][,policy=P][,priority=P] ...
 *   resize name=NAME [gradual=1] [dry-run=1] slice=UUID[,memory=BYTES][,compute=PERCENT][,...] ...
 *   set-state name=NAME to=active|switching|parked
 *   move name=NAME to=host|gpu
 *   set-cgroup name=NAME path=PATH
 *   end name=NAME
 *   want slice=UUID,memory=BYTES[,compute=PERCENT][,...] ...
 *
 * stop ends an arbiter without grants. replace ends it and leaves its grants and programs to the next one. Both
 * are refused while programs' memory is on the host (held_memory.h). may-end is refused then, too, and ends
 * nothing.
 *
 * A name is that of a grant of the caller's own. Except in make it may be UID:NAME, the name of a grant
 * of the user with that number.
 *
 * The owner of a new grant is the process that asks, or nobody with kept=1. With owner=UID it is a grant
 * of that user: kept, or owned by the process PID, which started at TICKS (/proc/PID/stat's field 22).
 * Without owner=UID, a kept grant with PID is a container's whose first process that is: when the process
 * has died, the grant has ended as if somebody had asked for it.
 *
 * With swap=1, for a grant with one slice, programs' memory can leave the GPU (residence.h). move says where
 * it shall be and is answered at once; status says how far each process is. With park-after it leaves by itself
 * when the grant has been idle for so long (parking.h), with park-if=wanted only if somebody wants its room. want
 * says that somebody waits for such slices (wants.h).
 *
 * With spill=BYTES, for a grant with one slice and without swap, programs get so much of the host's memory when
 * the slice is full (spill.h).
 *
 * With mps=1, for a grant with one slice and without swap, spill and together, its programs are clients of an MPS
 * server (mps.h).
 *
 * A resized slice names at least one setting; settings it does not name stay as they are. Exactly one
 * space separates two words, each key appears at most once, and numbers are decimal digits only. The
 * parser refuses everything else: it understands a request completely or not at all.
 */
#ifndef ARBITER_CONTROL_PARSE_H
#define ARBITER_CONTROL_PARSE_H

#include "aliquot/layout.h"
#include "cgroup.h"
#include "neighbours.h"

#include <stdbool.h>

#define CONTROL_LINE_MAX 4096u
#define CONTROL_LEAST_BYTES (UINT64_C(1) << 20)

enum control_kind {
	CONTROL_STATUS,
	CONTROL_STOP,
	CONTROL_REPLACE,
	CONTROL_MAY_END,
	CONTROL_LIMITS,
	CONTROL_READ_USERS,
	CONTROL_MAKE, /* from here on: about a grant */
	CONTROL_RESIZE,
	CONTROL_SET_STATE,
	CONTROL_MOVE,
	CONTROL_SET_CGROUP,
	CONTROL_END,
	CONTROL_WANT, /* about slices of no grant */
};

/* The settings that a slice names, one bit each. */
enum control_given {
	CONTROL_MEMORY = 1,
	CONTROL_COMPUTE = 2,
	CONTROL_POLICY = 4,
	CONTROL_PRIORITY = 8,
};

struct control_slice {
	uint8_t uuid[16];
	bool instance;  /* it was written "MIG-..." */
	uint32_t given; /* bits of enum control_given; settings not given are 0 */
	uint64_t memory_bytes;
	uint32_t compute_percent;
	enum aliquot_policy policy;
	enum aliquot_priority priority;
};

struct control_request {
	enum control_kind kind;
	char name[ALIQUOT_NAME_SIZE];
	bool has_owner;                   /* it is about a grant of `owner_uid`; make: a new one */
	uint32_t owner_uid;               /* 0 without has_owner */
	int32_t owner_pid;                /* make: the owning process; 0: not given */
	bool has_started;                 /* exactly with owner_pid */
	uint64_t owner_started;           /* 0 without has_started */
	char together[ALIQUOT_NAME_SIZE]; /* make: see struct grant_record; may be empty */
	struct neighbours neighbours;     /* make */
	bool kept;                        /* make: the grant stays until `end` */
	bool gradual;                     /* resize: lower memory only as far as its use allows */
	bool dry_run;                     /* resize: check everything, and change nothing */
	bool swap;                        /* make: its memory can leave the GPU */
	uint64_t park_after_ms;           /* make: when it is idle for so long; 0: it stays */
	bool park_if_wanted;              /* make: only if somebody wants its room */
	uint64_t swap_wait_ms;       /* make: it shall be off its GPU no longer; 0: the usual time */
	uint64_t overcommit_percent; /* make: overcommit.h; 0: as the arbiter allows */
	uint64_t spill_bytes;        /* make: memory of the host beside the slice's; 0: none */
	bool mps;                    /* make: its programs are clients of an MPS server */
	bool has_state;
	enum aliquot_grant_state grant_state; /* set-state: the new state */
	bool has_place;
	bool on_host;                  /* move: where its memory shall be */
	char cgroup[CGROUP_PATH_SIZE]; /* set-cgroup: as the arbiter reads it in /proc/PID/cgroup */
	uint32_t slice_count;
	struct control_slice slices[ALIQUOT_MAX_GPUS];
};

/* `line` has no newline. 0 and *out; or -1 and *error, a static text. */
int control_parse(const char *line, size_t len, struct control_request *out, const char **error);

/* [A-Za-z0-9][A-Za-z0-9._-]{0,62} */
int control_is_name(const char *text, size_t len);

#endif
