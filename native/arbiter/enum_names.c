#include "enum_names.h"

#include "aliquot/credit.h"
#include "aliquot/move.h"
#include "control_parse.h"
#include "turns.h"

#include <string.h>

#define NAMES(of) {of, sizeof(of) / sizeof(*of)}

static const char *const policies[] = {
	[ALIQUOT_ELASTIC] = "elastic",
	[ALIQUOT_HARD] = "hard",
};
static const char *const priorities[] = {
	[ALIQUOT_NORMAL] = "normal",
	[ALIQUOT_LATENCY] = "latency",
	[ALIQUOT_BACKGROUND] = "background",
};
static const char *const grant_states[] = {
	[ALIQUOT_GRANT_ACTIVE] = "active",
	[ALIQUOT_GRANT_SWITCHING] = "switching",
	[ALIQUOT_GRANT_PARKED] = "parked",
};
static const char *const residences[] = {
	[0] = "gpu",
	[ALIQUOT_ON_HOST] = "host",
};
static const char *const move_failures[] = {
	[0] = "none",
	[ALIQUOT_MOVE_NO_MOVER] = "no-mover",
	[ALIQUOT_MOVE_HOST_FULL] = "host-full",
	[ALIQUOT_MOVE_GPU_FULL] = "gpu-full",
	[ALIQUOT_MOVE_BUSY] = "busy",
	[ALIQUOT_MOVE_DRIVER] = "driver",
	[ALIQUOT_MOVE_UNKNOWN] = "no-copy",
	[ALIQUOT_MOVE_MALFORMED] = "malformed",
	[ALIQUOT_MOVE_UNSWAPPABLE] = "unswappable",
};
static const char *const lives[] = {
	[ALIQUOT_OWNED] = "owned",
	[ALIQUOT_KEPT] = "kept",
	[ALIQUOT_ENDED] = "ended",
};
static const char *const gates[] = {
	[ALIQUOT_GATES_UNTRIED] = "untried",
	[ALIQUOT_GATES_WORK] = "work",
	[ALIQUOT_GATES_FAIL] = "fail",
	[ALIQUOT_GATES_INVALID] = "invalid",
};
static const char *const turns[] = {
	[CONTENDER_OUT] = "out",         [CONTENDER_HOLDS] = "holds",   [CONTENDER_DRAINS] = "drains",
	[CONTENDER_OVERDUE] = "overdue", [CONTENDER_EXEMPT] = "exempt",
};
static const char *const requests[] = {
	[CONTROL_STATUS] = "status",
	[CONTROL_STOP] = "stop",
	[CONTROL_REPLACE] = "replace",
	[CONTROL_MAY_END] = "may-end",
	[CONTROL_LIMITS] = "limits",
	[CONTROL_READ_USERS] = "read-users",
	[CONTROL_MAKE] = "make",
	[CONTROL_RESIZE] = "resize",
	[CONTROL_SET_STATE] = "set-state",
	[CONTROL_MOVE] = "move",
	[CONTROL_SET_CGROUP] = "set-cgroup",
	[CONTROL_END] = "end",
	[CONTROL_WANT] = "want",
};

const struct enum_names enum_names_policy = NAMES(policies);
const struct enum_names enum_names_priority = NAMES(priorities);
const struct enum_names enum_names_grant_state = NAMES(grant_states);
const struct enum_names enum_names_residence = NAMES(residences);
const struct enum_names enum_names_move_failure = NAMES(move_failures);
const struct enum_names enum_names_life = NAMES(lives);
const struct enum_names enum_names_gates = NAMES(gates);
const struct enum_names enum_names_turn = NAMES(turns);
const struct enum_names enum_names_request = NAMES(requests);

const char *enum_name(const struct enum_names *names, uint32_t value)
{
	return value < names->count ? names->names[value] : "unknown";
}

bool enum_parse(const struct enum_names *names, const char *text, size_t length, uint32_t *value)
{
	for (uint32_t i = 0; i < names->count; i++) {
		if (length != strlen(names->names[i]) || memcmp(text, names->names[i], length) != 0)
			continue;
		*value = i;
		return true;
	}
	return false;
}
