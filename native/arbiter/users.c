#include "users.h"

#include "arbiter.h"
#include "grant.h"
#include "json.h"
#include "log.h"
#include "users_parse.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MOST (256u << 10)
#define GRANTS_WITHOUT_LIMIT 128u

struct user_limits {
	uint32_t uid;
	bool everybody; /* the line of `*` */
	struct user_line line;
};

/* The whole file; NULL and `failure`: it must not be believed, or cannot be read. A missing file is
 * empty. */
static char *read_file(const char *path, size_t *length, struct failure *failure)
{
	*length = 0;
	struct stat status;
	char *text = calloc(1, FILE_MOST + 1);
	int fd = text ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
	if (fd < 0 && text && errno == ENOENT)
		return text;
	const char *wrong = !text || fd < 0 || fstat(fd, &status) ? strerror(errno) : NULL;
	if (!wrong && !S_ISREG(status.st_mode))
		wrong = "it is not a plain file";
	if (!wrong && status.st_uid != 0 && status.st_uid != geteuid())
		wrong = "it belongs to another user than root";
	if (!wrong && status.st_mode & (S_IWGRP | S_IWOTH))
		wrong = "other users than root can write to it";
	ssize_t more = 0;
	while (!wrong && (more = read(fd, text + *length, FILE_MOST + 1 - *length)) > 0)
		*length += (size_t)more;
	if (!wrong && more < 0)
		wrong = strerror(errno);
	if (!wrong && *length > FILE_MOST)
		wrong = "it is larger than 256 KiB";
	if (fd >= 0)
		close(fd);
	if (!wrong)
		return text;
	free(text);
	failure_set(failure, "users-file", "%.150s cannot be used: %s", path, wrong);
	return NULL;
}

/* The number of a user; false: there is no such user. */
static bool find_uid(const char *name, uint32_t *uid)
{
	char *end;
	if (strspn(name, "0123456789") == strlen(name)) {
		unsigned long long number = strtoull(name, &end, 10);
		*uid = (uint32_t)number;
		return number < UINT32_MAX;
	}
	const struct passwd *user = getpwnam(name);
	if (user)
		*uid = user->pw_uid;
	return user != NULL;
}

/* Finds the user of a line; the error, or NULL. */
static const char *find_user(const struct user_line *line, struct user_limits *before,
                             uint32_t count, struct user_limits *out)
{
	*out = (struct user_limits){.everybody = !strcmp(line->name, "*"), .line = *line};
	if (out->everybody)
		return NULL;
	if (!find_uid(line->name, &out->uid))
		return "there is no such user";
	if (out->uid == 0)
		return "root has no limits";
	for (uint32_t i = 0; i < count; i++)
		if (!before[i].everybody && before[i].uid == out->uid)
			return "this user has a line already";
	return NULL;
}

static bool parse_file(const char *path, const char *text, size_t length, struct user_limits *out,
                       uint32_t *count, struct failure *failure)
{
	struct user_lines *lines = malloc(sizeof(*lines));
	uint32_t number = 0;
	const char *wrong = "out of memory", *who = "";
	if (lines && !users_parse(text, length, lines, &number, &wrong)) {
		wrong = NULL;
		for (*count = 0; !wrong && *count < lines->count; ++*count) {
			number = lines->lines[*count].number;
			wrong = find_user(&lines->lines[*count], out, *count, &out[*count]);
			who = lines->lines[*count].name;
		}
	}
	if (wrong)
		failure_set(failure, "users-file", "%.150s, line %u: %s%s%s", path, number, who,
		            *who ? ": " : "", wrong);
	free(lines);
	return !wrong;
}

bool users_read(struct users *users, struct failure *failure)
{
	if (!users->path)
		return failure_set(failure, "users-file",
		                   "this arbiter has no file of user limits: start it with --users FILE");
	size_t length;
	uint32_t count = 0;
	char *text = read_file(users->path, &length, failure);
	if (!text)
		return false;
	struct user_limits *limits = calloc(USERS_MOST, sizeof(*limits));
	bool read = limits && parse_file(users->path, text, length, limits, &count, failure);
	if (!limits)
		failure_set(failure, "users-file", "out of memory");
	free(text);
	if (!read) {
		free(limits);
		return false;
	}
	free(users->limits);
	users->limits = limits;
	users->count = count;
	users->problem[0] = 0;
	log_event("limits of users: %u lines in %s", count, users->path);
	return true;
}

bool users_read_first(struct users *users, const char *path, struct failure *failure)
{
	users->path = path;
	if (!path || users_read(users, failure))
		return true;
	snprintf(users->problem, sizeof(users->problem), "%.299s", failure->text);
	log_event("users get nothing new until this is corrected: %s", users->problem);
	return false;
}

void users_free(struct users *users)
{
	free(users->limits);
	users->limits = NULL;
	users->count = 0;
}

uint64_t users_alone_bytes(const struct grant *grant, uint32_t slice)
{
	return grant->record->neighbours.alone ? grant->limits->slices[slice].gpu_bytes : 0;
}

void users_add(struct user_use *use, const struct control_slice *slice, uint64_t alone_bytes)
{
	if (alone_bytes) {
		use->memory_bytes += alone_bytes;
		use->compute_percent += 100;
		return;
	}
	use->memory_bytes += slice->memory_bytes;
	if (slice->priority == ALIQUOT_BACKGROUND)
		return;
	use->compute_percent += slice->compute_percent;
	use->without_share |= !slice->compute_percent;
}

struct user_use users_of_grant(const struct grant *grant)
{
	struct user_use use = {.grants = 1};
	if (!grant->limits || (grant_state(grant) == ALIQUOT_GRANT_PARKED && !grant_is_off(grant)))
		return use;
	for (uint32_t i = 0; i < grant->slice_count; i++) {
		const struct aliquot_slice_limits *slice = &grant->limits->slices[i];
		struct control_slice has = {
			.memory_bytes = atomic_load(&slice->limit_bytes),
			.compute_percent = atomic_load(&slice->compute_percent),
			.priority = (enum aliquot_priority)atomic_load(&slice->priority),
		};
		users_add(&use, &has, users_alone_bytes(grant, i));
	}
	return use;
}

static struct user_use use_of(struct arbiter *arbiter, uint32_t uid)
{
	struct user_use sum = {0};
	for (const struct grant *grant = arbiter->grants; grant; grant = grant->next) {
		if (grant->owner_uid != uid)
			continue;
		struct user_use one = users_of_grant(grant);
		sum.memory_bytes += one.memory_bytes;
		sum.compute_percent += one.compute_percent;
		sum.grants += one.grants;
	}
	return sum;
}

/* The limits of a user. */
static struct user_line line_of(const struct users *users, uint32_t uid)
{
	struct user_line found = {0};
	for (uint32_t i = 0; i < users->count; i++) {
		const struct user_limits *one = &users->limits[i];
		if (!one->everybody && one->uid == uid) {
			found = one->line;
			break;
		}
		if (one->everybody)
			found = one->line;
	}
	if (!(found.given & USERS_GRANTS))
		found.grants = GRANTS_WITHOUT_LIMIT;
	return found;
}

/* "alice (4001)" if the file has the name, else "4001". The machine is not asked: that may take long. */
static void write_user(uint32_t uid, const struct user_line *limits, char *out, size_t size)
{
	if (strspn(limits->name, "0123456789*") == strlen(limits->name))
		snprintf(out, size, "%u", uid);
	else
		snprintf(out, size, "%s (%u)", limits->name, uid);
}

/* A user that asks for more. */
struct asking {
	const char *file; /* of the limits */
	char user[USERS_NAME_SIZE + 16];
	struct user_line limits;
	struct user_use now;
};

__attribute__((format(printf, 3, 4))) static bool refuse(const struct asking *asking,
                                                         struct failure *failure,
                                                         const char *figures, ...)
{
	char text[160];
	va_list args;
	va_start(args, figures);
	vsnprintf(text, sizeof(text), figures, args);
	va_end(args);
	return failure_set(failure, "user-limit", "user %s may have %s; root sets the limit in %.150s",
	                   asking->user, text, asking->file);
}

static bool check_grants(const struct asking *asking, struct failure *failure)
{
	uint32_t most = asking->limits.grants, used = asking->now.grants;
	if (used < most)
		return true;
	return refuse(asking, failure, "%u grant%s and has %u: 1 more requested", most, plural(most),
	              used);
}

static bool check_memory(const struct asking *asking, uint64_t more, struct failure *failure)
{
	uint64_t most = asking->limits.memory_bytes, used = asking->now.memory_bytes;
	if (used <= most && more <= most - used)
		return true;
	return refuse(asking, failure,
	              "%llu MiB of GPU memory in all and has %llu MiB: %llu MiB more requested",
	              mib_of(most), mib_for(used), mib_for(more));
}

static bool check_compute(const struct asking *asking, uint64_t more, struct failure *failure)
{
	unsigned long long most = asking->limits.compute_percent, used = asking->now.compute_percent;
	if (used + more <= most)
		return true;
	return refuse(asking, failure,
	              "%llu %% of compute in all and has %llu %%: %llu %% more requested", most, used,
	              (unsigned long long)more);
}

bool users_grows(const struct user_use *before, const struct user_use *after)
{
	return after->grants > before->grants || after->memory_bytes > before->memory_bytes ||
	       after->compute_percent > before->compute_percent ||
	       (after->without_share && !before->without_share);
}

bool users_check(struct arbiter *arbiter, uint32_t uid, const struct user_use *before,
                 const struct user_use *after, struct failure *failure)
{
	const struct users *users = &arbiter->users;
	if (callers_is_privileged(uid) || !users_grows(before, after))
		return true;
	if (*users->problem)
		return failure_set(failure, "users-file", "the limits of users are unknown: %.250s",
		                   users->problem);
	struct asking asking = {
		.file = users->path ? users->path : "the file of --users",
		.limits = line_of(users, uid),
		.now = use_of(arbiter, uid),
	};
	write_user(uid, &asking.limits, asking.user, sizeof(asking.user));
	if (after->grants > before->grants && !check_grants(&asking, failure))
		return false;
	if (asking.limits.given & USERS_MEMORY && after->memory_bytes > before->memory_bytes &&
	    !check_memory(&asking, after->memory_bytes - before->memory_bytes, failure))
		return false;
	if (!(asking.limits.given & USERS_COMPUTE))
		return true;
	if (after->without_share && !before->without_share)
		return failure_set(failure, "share-needed",
		                   "user %s may have %u %% of compute in all, so each slice needs a "
		                   "percentage: this one has none",
		                   asking.user, asking.limits.compute_percent);
	return after->compute_percent <= before->compute_percent ||
	       check_compute(&asking, after->compute_percent - before->compute_percent, failure);
}

static void write_limit(struct json *out, const char *key, bool given, uint64_t value)
{
	if (given)
		json_number(out, key, value);
	else
		json_string(out, key, NULL);
}

static void write_one(struct arbiter *arbiter, uint32_t uid, struct json *out)
{
	struct user_line limits = line_of(&arbiter->users, uid);
	struct user_use use = use_of(arbiter, uid);
	bool limited = !callers_is_privileged(uid);
	json_open(out, NULL, '{');
	json_number(out, "uid", uid);
	write_limit(out, "memory_bytes", limited && limits.given & USERS_MEMORY, limits.memory_bytes);
	write_limit(out, "compute_percent", limited && limits.given & USERS_COMPUTE,
	            limits.compute_percent);
	write_limit(out, "grants", limited, limits.grants);
	json_number(out, "used_memory_bytes", use.memory_bytes);
	json_number(out, "used_compute_percent", use.compute_percent);
	json_number(out, "used_grants", use.grants);
	json_close(out, '}');
}

/* Whether an earlier grant in the list has the same owner, or the owner has a line. */
static bool is_written(struct arbiter *arbiter, const struct grant *grant)
{
	for (uint32_t i = 0; i < arbiter->users.count; i++)
		if (!arbiter->users.limits[i].everybody && arbiter->users.limits[i].uid == grant->owner_uid)
			return true;
	for (const struct grant *one = arbiter->grants; one != grant; one = one->next)
		if (one->owner_uid == grant->owner_uid)
			return true;
	return false;
}

void users_write(struct arbiter *arbiter, uint32_t uid, struct json *out)
{
	const struct users *users = &arbiter->users;
	json_open(out, NULL, '{');
	json_string(out, "file", users->path);
	json_string(out, "problem", *users->problem ? users->problem : NULL);
	json_open(out, "users", '[');
	if (!callers_is_privileged(uid)) {
		write_one(arbiter, uid, out);
	} else {
		for (uint32_t i = 0; i < users->count; i++)
			if (!users->limits[i].everybody)
				write_one(arbiter, users->limits[i].uid, out);
		for (const struct grant *grant = arbiter->grants; grant; grant = grant->next)
			if (!is_written(arbiter, grant))
				write_one(arbiter, grant->owner_uid, out);
	}
	json_close(out, ']');
	json_close(out, '}');
}
