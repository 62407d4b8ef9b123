#include "control_parse.h"

#include "aliquot/uuid.h"

#include <string.h>

struct text {
	const char *at;
	size_t length;
};

static bool is(struct text text, const char *word)
{
	return text.length == strlen(word) && !memcmp(text.at, word, text.length);
}

/* Cuts the part before the next `separator` off *rest; *more: there was one. */
static struct text cut(struct text *rest, char separator, bool *more)
{
	const char *end = rest->length ? memchr(rest->at, separator, rest->length) : NULL;
	struct text part = {rest->at, end ? (size_t)(end - rest->at) : rest->length};
	size_t used = part.length + (end != NULL);
	*more = end != NULL;
	rest->at += used;
	rest->length -= used;
	return part;
}

static bool is_alphanumeric(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

int control_is_name(const char *text, size_t len)
{
	if (len == 0 || len >= ALIQUOT_NAME_SIZE || !is_alphanumeric(text[0]))
		return 0;
	for (size_t i = 1; i < len; i++)
		if (!is_alphanumeric(text[i]) && text[i] != '.' && text[i] != '_' && text[i] != '-')
			return 0;
	return 1;
}

static bool parse_number(struct text text, uint64_t most, uint64_t *out)
{
	uint64_t value = 0;
	if (!text.length)
		return false;
	for (size_t i = 0; i < text.length; i++) {
		if (text.at[i] < '0' || text.at[i] > '9')
			return false;
		uint64_t digit = (uint64_t)(text.at[i] - '0');
		if (value > (most - digit) / 10)
			return false;
		value = value * 10 + digit;
	}
	*out = value;
	return true;
}

struct word {
	const char *text;
	int value;
};

static const struct word policies[] = {{"elastic", ALIQUOT_ELASTIC}, {"hard", ALIQUOT_HARD}};
static const struct word priorities[] = {{"normal", ALIQUOT_NORMAL},
                                         {"latency", ALIQUOT_LATENCY},
                                         {"background", ALIQUOT_BACKGROUND}};
static const struct word holds[] = {{"taken", ALIQUOT_HOLD_TAKEN},
                                    {"open", ALIQUOT_HOLD_OPEN},
                                    {"parked", ALIQUOT_HOLD_PARKED}};

static bool parse_word(struct text text, const struct word *words, size_t count, int *out)
{
	for (size_t i = 0; i < count; i++) {
		if (is(text, words[i].text)) {
			*out = words[i].value;
			return true;
		}
	}
	return false;
}

static const struct {
	const char *text;
	enum control_given key;
} keys[] = {{"memory", CONTROL_MEMORY},
            {"compute", CONTROL_COMPUTE},
            {"policy", CONTROL_POLICY},
            {"priority", CONTROL_PRIORITY}};

#define KEYS (sizeof(keys) / sizeof(*keys))

static const char *parse_value(enum control_given key, struct text text,
                               struct control_slice *slice)
{
	uint64_t number = 0;
	int value = 0;
	switch (key) {
	case CONTROL_MEMORY:
		if (!parse_number(text, UINT64_MAX, &slice->memory_bytes))
			return "memory is a number of bytes";
		if (slice->memory_bytes < CONTROL_LEAST_BYTES)
			return "a slice's memory is at least 1 MiB";
		break;
	case CONTROL_COMPUTE:
		if (!parse_number(text, 100, &number))
			return "compute is a number of percent from 0 to 100";
		slice->compute_percent = (uint32_t)number;
		break;
	case CONTROL_POLICY:
		if (!parse_word(text, policies, sizeof(policies) / sizeof(*policies), &value))
			return "policy is elastic or hard";
		slice->policy = (enum aliquot_policy)value;
		break;
	case CONTROL_PRIORITY:
		if (!parse_word(text, priorities, sizeof(priorities) / sizeof(*priorities), &value))
			return "priority is latency, normal or background";
		slice->priority = (enum aliquot_priority)value;
		break;
	}
	return NULL;
}

/* One KEY=VALUE of a slice; what is wrong with it, or NULL. */
static const char *parse_setting(struct text setting, struct control_slice *slice)
{
	bool more;
	struct text key = cut(&setting, '=', &more);
	size_t which = 0;
	while (which < KEYS && !is(key, keys[which].text))
		which++;
	if (!more || which == KEYS)
		return "a slice has memory, compute, policy and priority";
	if (slice->given & keys[which].key)
		return "a slice's key comes twice";
	slice->given |= keys[which].key;
	return parse_value(keys[which].key, setting, slice);
}

static const char *parse_slice(struct text text, enum control_kind kind,
                               struct control_slice *slice)
{
	bool more;
	struct text uuid = cut(&text, ',', &more);
	memset(slice, 0, sizeof(*slice));
	if (!aliquot_uuid_parse(uuid.at, uuid.length, slice->uuid))
		return "a slice begins with its GPU's UUID: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
	while (more) {
		const char *wrong = parse_setting(cut(&text, ',', &more), slice);
		if (wrong)
			return wrong;
	}
	if (kind == CONTROL_MAKE && !(slice->given & CONTROL_MEMORY))
		return "a slice needs memory=BYTES";
	if (!slice->given)
		return "a slice needs something that is to change";
	return NULL;
}

static const char *add_slice(struct text text, struct control_request *out)
{
	if (out->slice_count == ALIQUOT_MAX_GPUS)
		return "a grant has at most 16 slices";
	struct control_slice *slice = &out->slices[out->slice_count];
	const char *wrong = parse_slice(text, out->kind, slice);
	if (wrong)
		return wrong;
	for (uint32_t i = 0; i < out->slice_count; i++)
		if (!memcmp(out->slices[i].uuid, slice->uuid, sizeof(slice->uuid)))
			return "a grant has one slice of a GPU, not two";
	out->slice_count++;
	return NULL;
}

static const char *parse_name(struct text text, struct control_request *out)
{
	if (*out->name)
		return "the name comes twice";
	if (!control_is_name(text.at, text.length))
		return "a name is 1 to 63 of A-Z a-z 0-9 . _ - and begins with a letter or digit";
	memcpy(out->name, text.at, text.length);
	return NULL;
}

/* A setting that is 1 or not given. */
static const char *parse_switch(struct text text, bool *out)
{
	if (*out)
		return "a setting comes twice";
	*out = is(text, "1");
	return *out ? NULL : "kept and gradual are 1 or not given";
}

static const char *parse_hold(struct text text, struct control_request *out)
{
	int value = 0;
	if (out->has_hold)
		return "a setting comes twice";
	out->has_hold = parse_word(text, holds, sizeof(holds) / sizeof(*holds), &value);
	out->hold = (enum aliquot_hold)value;
	return out->has_hold ? NULL : "a grant is held as taken, open or parked";
}

static bool takes_slices(const struct control_request *request)
{
	return request->kind == CONTROL_MAKE || request->kind == CONTROL_RESIZE;
}

/* What a request about a grant takes, for people. */
static const char *const takes[] = {
	[CONTROL_MAKE] = "make takes name=NAME, kept=1 and slice=...",
	[CONTROL_RESIZE] = "resize takes name=NAME, gradual=1 and slice=...",
	[CONTROL_HOLD] = "hold takes name=NAME and as=taken, open or parked",
	[CONTROL_END] = "end takes name=NAME",
};

static const char *parse_word_of_grant(struct text value, struct control_request *out)
{
	bool has_value;
	struct text key = cut(&value, '=', &has_value);
	if (has_value && is(key, "name"))
		return parse_name(value, out);
	if (has_value && takes_slices(out) && is(key, "slice"))
		return add_slice(value, out);
	if (has_value && out->kind == CONTROL_MAKE && is(key, "kept"))
		return parse_switch(value, &out->kept);
	if (has_value && out->kind == CONTROL_RESIZE && is(key, "gradual"))
		return parse_switch(value, &out->gradual);
	if (has_value && out->kind == CONTROL_HOLD && is(key, "as"))
		return parse_hold(value, out);
	return takes[out->kind];
}

/* What follows the word of a request about a grant. */
static const char *parse_grant(struct text rest, bool more, struct control_request *out)
{
	while (more) {
		const char *wrong = parse_word_of_grant(cut(&rest, ' ', &more), out);
		if (wrong)
			return wrong;
	}
	if (!*out->name)
		return "a request about a grant needs name=NAME";
	if (!out->slice_count && takes_slices(out))
		return "make and resize need at least one slice=...";
	return out->kind == CONTROL_HOLD && !out->has_hold ? takes[CONTROL_HOLD] : NULL;
}

static bool find_kind(struct text verb, enum control_kind *kind)
{
	static const char *const verbs[] = {
		[CONTROL_STATUS] = "status", [CONTROL_STOP] = "stop", [CONTROL_MAKE] = "make",
		[CONTROL_RESIZE] = "resize", [CONTROL_HOLD] = "hold", [CONTROL_END] = "end",
	};
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++) {
		*kind = (enum control_kind)i;
		if (is(verb, verbs[i]))
			return true;
	}
	return false;
}

int control_parse(const char *line, size_t len, struct control_request *out, const char **error)
{
	struct text rest = {line, len};
	bool more;
	memset(out, 0, sizeof(*out));
	struct text verb = cut(&rest, ' ', &more);
	*error = NULL;
	bool known = find_kind(verb, &out->kind);
	if (known && out->kind >= CONTROL_MAKE)
		*error = parse_grant(rest, more, out);
	else if (!known || more)
		*error = "a request is status, stop, or make, resize, hold or end with name=NAME";
	return *error ? -1 : 0;
}
