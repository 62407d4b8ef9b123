/* Parses root's file of user limits: a pure function, and the only reader of that text.
 *
 *   # a comment
 *   user alice memory 40GiB compute 50 grants 4
 *   user 1000  grants 2
 *   user *     memory 20GiB
 *
 * One line for each user, by name or number; `*` is every user without a line. A line has at least one
 * limit and each at most once. Spaces and tabs separate words. The parser refuses everything else: it
 * understands a file completely or not at all.
 */
#ifndef ARBITER_USERS_PARSE_H
#define ARBITER_USERS_PARSE_H

#include <stddef.h>
#include <stdint.h>

#define USERS_MOST 1024u
#define USERS_NAME_SIZE 64u
#define USERS_MOST_PERCENT 1600u /* all of 16 GPUs */
#define USERS_MOST_GRANTS 1024u

/* The limits that a line has, one bit each. */
enum users_given {
	USERS_MEMORY = 1,
	USERS_COMPUTE = 2,
	USERS_GRANTS = 4,
};

struct user_line {
	char name[USERS_NAME_SIZE]; /* a name, a number or "*"; no other line has the same text */
	uint32_t number;            /* of the line, from 1 */
	uint32_t given;             /* bits of enum users_given; limits not given are 0 */
	uint32_t compute_percent;
	uint32_t grants;
	uint64_t memory_bytes;
};

struct user_lines {
	uint32_t count;
	struct user_line lines[USERS_MOST];
};

/* 0 and *out; or -1, *error, a static text, and *line, where it is. */
int users_parse(const char *text, size_t length, struct user_lines *out, uint32_t *line,
                const char **error);

#endif
