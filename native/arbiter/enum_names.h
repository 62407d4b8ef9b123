/* The names of enum values in requests, replies and the log: one table for parser and printer.
 *
 * Each enum counts from 0 without gaps. A name is part of the control protocol; the Python side has
 * the same names in aliquot.model.
 */
#ifndef ARBITER_ENUM_NAMES_H
#define ARBITER_ENUM_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct enum_names {
	const char *const *names; /* by value */
	size_t count;
};

extern const struct enum_names enum_names_policy;       /* enum aliquot_policy */
extern const struct enum_names enum_names_priority;     /* enum aliquot_priority */
extern const struct enum_names enum_names_grant_state;  /* enum aliquot_grant_state */
extern const struct enum_names enum_names_residence;    /* ALIQUOT_ON_HOST, or 0: on the GPU */
extern const struct enum_names enum_names_move_failure; /* enum aliquot_move_failure, or 0 */
extern const struct enum_names enum_names_life;         /* enum aliquot_life */
extern const struct enum_names enum_names_gates;        /* enum aliquot_gates */
extern const struct enum_names enum_names_turn;         /* enum contender_state */
extern const struct enum_names enum_names_request;      /* enum control_kind */

/* The name of a value; "unknown" if the enum has no such value. */
const char *enum_name(const struct enum_names *names, uint32_t value);

/* The value with that name; false: there is none. */
bool enum_parse(const struct enum_names *names, const char *text, size_t length, uint32_t *value);

#endif
