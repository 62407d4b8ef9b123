#include "users_parse.h"

#include <stdbool.h>
#include <string.h>

struct text {
	const char *at;
	size_t length;
};

static bool equals(struct text text, const char *word)
{
	return text.length == strlen(word) && !memcmp(text.at, word, text.length);
}

static struct text cut_line(struct text *rest)
{
	const char *end = memchr(rest->at, '\n', rest->length);
	struct text line = {rest->at, end ? (size_t)(end - rest->at) : rest->length};
	size_t used = line.length + (end != NULL);
	rest->at += used;
	rest->length -= used;
	return line;
}

/* Cuts off the next word; empty at the end of the line. */
static struct text cut_word(struct text *line)
{
	while (line->length && (*line->at == ' ' || *line->at == '\t')) {
		line->at++;
		line->length--;
	}
	struct text word = {line->at, 0};
	while (line->length && *line->at != ' ' && *line->at != '\t') {
		line->at++;
		line->length--;
		word.length++;
	}
	return word;
}

/* Cuts off the number that the text begins with; false: there is none, or it is above `most`. */
static bool cut_number(struct text *text, uint64_t most, uint64_t *out)
{
	uint64_t value = 0;
	size_t digits = 0;
	for (; text->length && *text->at >= '0' && *text->at <= '9'; digits++) {
		uint64_t digit = (uint64_t)(*text->at - '0');
		if (value > (most - digit) / 10)
			return false;
		value = value * 10 + digit;
		text->at++;
		text->length--;
	}
	*out = value;
	return digits > 0;
}

static const char *parse_memory(struct text text, struct user_line *out)
{
	static const struct {
		const char *name;
		unsigned shift;
	} units[] = {{"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
	uint64_t number;
	if (cut_number(&text, 1u << 20, &number))
		for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++)
			if (equals(text, units[i].name)) {
				out->memory_bytes = number << units[i].shift;
				return NULL;
			}
	return "memory is a whole number of MiB, GiB or TiB, for example 40GiB";
}

static const char *parse_count(struct text text, uint32_t most, uint32_t *out, const char *wrong)
{
	uint64_t number;
	if (!cut_number(&text, most, &number) || text.length)
		return wrong;
	*out = (uint32_t)number;
	return NULL;
}

static const char *parse_limit(struct text key, struct text value, struct user_line *out)
{
	uint32_t which = equals(key, "memory")    ? USERS_MEMORY
	                 : equals(key, "compute") ? USERS_COMPUTE
	                 : equals(key, "grants")  ? USERS_GRANTS
	                                          : 0;
	if (!which)
		return "the limits of a user are memory, compute and grants";
	if (out->given & which)
		return "a limit is given twice";
	out->given |= which;
	if (which == USERS_MEMORY)
		return parse_memory(value, out);
	if (which == USERS_COMPUTE)
		return parse_count(value, USERS_MOST_PERCENT, &out->compute_percent,
		                   "compute is a number of percent from 0 to 1600, 100 for each GPU");
	return parse_count(value, USERS_MOST_GRANTS, &out->grants, "grants is a number from 0 to 1024");
}

static const char *parse_line(struct text line, struct user_line *out)
{
	struct text name = cut_word(&line);
	if (!name.length || name.length >= USERS_NAME_SIZE)
		return "after `user` comes the name or number of a user, or *";
	for (size_t i = 0; i < name.length; i++)
		if (name.at[i] <= ' ' || name.at[i] > '~')
			return "the name of a user has an unprintable character";
	memcpy(out->name, name.at, name.length);
	for (struct text key = cut_word(&line); key.length; key = cut_word(&line)) {
		const char *wrong = parse_limit(key, cut_word(&line), out);
		if (wrong)
			return wrong;
	}
	return out->given ? NULL : "a user needs at least one limit, for example: memory 40GiB";
}

static const char *add_line(struct text line, uint32_t number, struct user_lines *out)
{
	struct text first = cut_word(&line);
	if (!first.length || *first.at == '#')
		return NULL;
	if (!equals(first, "user"))
		return "a line begins with `user` or #";
	if (out->count == USERS_MOST)
		return "a file has at most 1024 users";
	struct user_line *added = &out->lines[out->count];
	memset(added, 0, sizeof(*added));
	added->number = number;
	const char *wrong = parse_line(line, added);
	for (uint32_t i = 0; !wrong && i < out->count; i++)
		if (!strcmp(out->lines[i].name, added->name))
			wrong = "this user has a line already";
	out->count += !wrong;
	return wrong;
}

int users_parse(const char *text, size_t length, struct user_lines *out, uint32_t *line,
                const char **error)
{
	struct text rest = {text, length};
	out->count = 0;
	*error = NULL;
	for (*line = 1; rest.length; ++*line) {
		*error = add_line(cut_line(&rest), *line, out);
		if (*error)
			return -1;
	}
	return 0;
}
