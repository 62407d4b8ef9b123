/* What each user may have: limits on memory, compute and grants, from a file of root's.
 *
 * A limit is on all slices of a user together, over all GPUs; 100 percent of compute are one GPU.
 * Slices of parked grants count for nothing, background slices for no compute. A user with a limit on
 * compute gives each slice a percentage, because one without has whatever the others leave. Without a
 * line of their own, users have the limits of `*`; without that they have none, except a number of
 * grants that nobody needs. Root and the arbiter's own user have none.
 *
 * The limits are those of the owner of a grant, also if root asks, and only what grows is checked: a user
 * above a new limit keeps everything, and can shrink it.
 *
 * The arbiter reads the file when it starts and on request. A file that it must not believe or does not
 * understand changes nothing, but an arbiter that starts with one gives users nothing new.
 */
#ifndef ARBITER_USERS_H
#define ARBITER_USERS_H

#include "control_parse.h"
#include "failure.h"

#include <stdbool.h>
#include <stdint.h>

struct arbiter;
struct grant;
struct json;
struct user_limits;

struct users {
	const char *path; /* NULL: there is no file */
	struct user_limits *limits;
	uint32_t count;
	char problem[300]; /* why there are no limits to go by; empty: there are */
};

/* What slices need, or a user has. */
struct user_use {
	uint64_t memory_bytes, compute_percent;
	uint32_t grants;
	bool without_share; /* a slice has no percentage and is not in the background */
};

/* Reads the file; a missing one has no limits. False: the limits are as before. */
bool users_read(struct users *users, struct failure *failure);
/* The same at the start: if it fails, users get nothing new. */
bool users_read_first(struct users *users, const char *path, struct failure *failure);
void users_free(struct users *users);

/* The memory of a slice's GPU if its grant, whose record can be read, is alone on it; else 0. */
uint64_t users_alone_bytes(const struct grant *grant, uint32_t slice);
/* Adds what a slice with these settings needs. With `alone_bytes` it keeps everybody else away from a
 * GPU with so much memory, and counts as all of it. */
void users_add(struct user_use *use, const struct control_slice *slice, uint64_t alone_bytes);
/* What a grant needs; nothing while it is parked, except in `grants`. */
struct user_use users_of_grant(const struct grant *grant);

/* Whether `after` has more of anything than `before`. */
bool users_grows(const struct user_use *before, const struct user_use *after);

/* Whether the user may have `after` instead of `before`. */
bool users_check(struct arbiter *arbiter, uint32_t uid, const struct user_use *before,
                 const struct user_use *after, struct failure *failure);

/* The reply to `limits`: limits and use of the caller; for root and the arbiter's user, of all. */
void users_write(struct arbiter *arbiter, uint32_t uid, struct json *out);

#endif
