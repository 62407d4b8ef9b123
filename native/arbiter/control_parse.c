#include "control_parse.h"

#include "aliquot/uuid.h"
#include "enum_names.h"

#include <string.h>

#define SPILL_MOST_BYTES (UINT64_C(1) << 46)
#define OVERCOMMIT_MOST 1000u
#define SWAP_WAIT_LEAST_MS UINT64_C(2000)
#define SWAP_WAIT_MOST_MS (UINT64_C(3600) * 1000)
#define PARK_AFTER_MOST_MS (UINT64_C(10) * 365 * 24 * 3600 * 1000)

struct text {
	const char *at;
	size_t length;
};

static bool equals(struct text text, const char *word)
{
	return text.length == strlen(word) && !memcmp(text.at, word, text.length);
}

/* Cuts off the part of *rest before the next `separator`; *more: there was a separator. */
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
	uint32_t value = 0;
	switch (key) {
	case CONTROL_MEMORY:
		if (!parse_number(text, UINT64_MAX, &slice->memory_bytes))
			return "memory must be a number of bytes";
		if (slice->memory_bytes < CONTROL_LEAST_BYTES)
			return "a slice has at least 1 MiB of memory";
		break;
	case CONTROL_COMPUTE:
		if (!parse_number(text, 100, &number))
			return "compute must be a percentage from 0 to 100";
		slice->compute_percent = (uint32_t)number;
		break;
	case CONTROL_POLICY:
		if (!enum_parse(&enum_names_policy, text.at, text.length, &value))
			return "policy must be elastic or hard";
		slice->policy = (enum aliquot_policy)value;
		break;
	case CONTROL_PRIORITY:
		if (!enum_parse(&enum_names_priority, text.at, text.length, &value))
			return "priority must be latency, normal or background";
		slice->priority = (enum aliquot_priority)value;
		break;
	}
	return NULL;
}

/* Parses one KEY=VALUE of a slice; returns the error, or NULL. */
static const char *parse_setting(struct text setting, struct control_slice *slice)
{
	bool more;
	struct text key = cut(&setting, '=', &more);
	size_t which = 0;
	while (which < KEYS && !equals(key, keys[which].text))
		which++;
	if (!more || which == KEYS)
		return "the keys of a slice are memory, compute, policy and priority";
	if (slice->given & keys[which].key)
		return "a slice has a key twice";
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
		return "a slice begins with the UUID of its GPU: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, "
			   "or of "
			   "an instance: MIG-xxxxxxxx-...";
	slice->instance = aliquot_uuid_is_instance(uuid.at);
	while (more) {
		const char *wrong = parse_setting(cut(&text, ',', &more), slice);
		if (wrong)
			return wrong;
	}
	if (kind != CONTROL_RESIZE && !(slice->given & CONTROL_MEMORY))
		return "a slice needs memory=BYTES";
	if (!slice->given)
		return "a slice needs at least one setting to change";
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
			return "a grant has at most one slice of each GPU";
	out->slice_count++;
	return NULL;
}

/* Parses a name that has not been given yet, into an array of ALIQUOT_NAME_SIZE. */
static const char *parse_name(struct text text, char *out)
{
	if (*out)
		return "a name is given twice";
	if (!control_is_name(text.at, text.length))
		return "a name is 1 to 63 characters of A-Z a-z 0-9 . _ - and begins with a letter or "
			   "digit";
	memcpy(out, text.at, text.length);
	return NULL;
}

/* Parses NAME or UID:NAME. */
static const char *parse_grant_name(struct text text, struct control_request *out)
{
	bool has_owner;
	uint64_t uid = 0;
	struct text rest = text, owner = cut(&rest, ':', &has_owner);
	if (!has_owner || out->kind == CONTROL_MAKE)
		return parse_name(text, out->name);
	if (!parse_number(owner, UINT32_MAX - 1, &uid))
		return "before the colon of a name is the number of a user";
	out->has_owner = true;
	out->owner_uid = (uint32_t)uid;
	return parse_name(rest, out->name);
}

/* Parses the user, the process and its start time that make may name. */
static const char *parse_owner(struct text text, struct control_request *out)
{
	uint64_t uid = 0;
	if (out->has_owner)
		return "a setting is given twice";
	out->has_owner = parse_number(text, UINT32_MAX - 1, &uid);
	out->owner_uid = (uint32_t)uid;
	return out->has_owner ? NULL : "owner must be the number of a user";
}

static const char *parse_pid(struct text text, struct control_request *out)
{
	uint64_t pid = 0;
	if (out->owner_pid)
		return "a setting is given twice";
	if (!parse_number(text, INT32_MAX, &pid) || !pid)
		return "pid must be the number of a process";
	out->owner_pid = (int32_t)pid;
	return NULL;
}

static const char *parse_started(struct text text, struct control_request *out)
{
	if (out->has_started)
		return "a setting is given twice";
	out->has_started = parse_number(text, UINT64_MAX, &out->owner_started);
	return out->has_started ? NULL : "started must be a number of clock ticks";
}

/* Whether the settings of make about the owner agree. */
static bool has_valid_owner(const struct control_request *request)
{
	bool has_pid = request->owner_pid != 0;
	if (request->kind != CONTROL_MAKE)
		return true;
	if (has_pid != request->has_started)
		return false;
	return request->has_owner ? request->kept != has_pid : request->kept || !has_pid;
}

/* Parses a setting that is 1 or not given. */
static const char *parse_switch(struct text text, bool *out)
{
	if (*out)
		return "a setting is given twice";
	*out = equals(text, "1");
	return *out ? NULL : "kept, swap, mps, gradual and dry-run must be 1 or left out";
}

static const char *parse_park_after(struct text text, struct control_request *out)
{
	if (out->park_after_ms)
		return "a setting is given twice";
	bool valid = parse_number(text, PARK_AFTER_MOST_MS, &out->park_after_ms) && out->park_after_ms;
	return valid ? NULL : "park-after must be a number of milliseconds, at most 10 years";
}

static const char *parse_swap_wait(struct text text, struct control_request *out)
{
	if (out->swap_wait_ms)
		return "a setting is given twice";
	bool valid = parse_number(text, SWAP_WAIT_MOST_MS, &out->swap_wait_ms) &&
	             out->swap_wait_ms >= SWAP_WAIT_LEAST_MS;
	return valid ? NULL : "swap-wait must be a number of milliseconds, 2 s to 1 h";
}

static const char *parse_overcommit(struct text text, struct control_request *out)
{
	if (out->overcommit_percent)
		return "a setting is given twice";
	bool valid = parse_number(text, OVERCOMMIT_MOST, &out->overcommit_percent) &&
	             out->overcommit_percent >= 100;
	return valid ? NULL : "overcommit must be a percentage of a GPU's memory, 100 to 1000";
}

static const char *parse_park_if(struct text text, struct control_request *out)
{
	if (out->park_if_wanted)
		return "a setting is given twice";
	out->park_if_wanted = equals(text, "wanted");
	return out->park_if_wanted ? NULL : "park-if must be wanted or left out";
}

static const char *parse_spill(struct text text, struct control_request *out)
{
	if (out->spill_bytes)
		return "a setting is given twice";
	bool valid = parse_number(text, SPILL_MOST_BYTES, &out->spill_bytes) &&
	             out->spill_bytes >= CONTROL_LEAST_BYTES;
	return valid ? NULL : "spill must be a number of bytes, at least 1 MiB";
}

/* Parses NAME,NAME,... of different names. */
static const char *parse_apart(struct text text, struct neighbours *out)
{
	bool more = true;
	if (*out->apart[0])
		return "a setting is given twice";
	for (unsigned count = 0; more; count++) {
		struct text name = cut(&text, ',', &more);
		if (count == NEIGHBOURS_MOST)
			return "a grant is apart from at most 8 labels";
		const char *wrong = parse_name(name, out->apart[count]);
		if (wrong)
			return wrong;
		for (unsigned i = 0; i < count; i++)
			if (!strcmp(out->apart[i], out->apart[count]))
				return "a grant is apart from a label twice";
	}
	return NULL;
}

static const char *parse_alone(struct text text, struct neighbours *out)
{
	if (out->alone)
		return "a setting is given twice";
	out->alone = equals(text, "1");
	return out->alone ? NULL : "alone must be 1 or left out";
}

static const char *parse_state(struct text text, struct control_request *out)
{
	uint32_t value = 0;
	if (out->has_state)
		return "a setting is given twice";
	out->has_state = enum_parse(&enum_names_grant_state, text.at, text.length, &value);
	out->grant_state = (enum aliquot_grant_state)value;
	return out->has_state ? NULL : "a grant is active, switching or parked";
}

static const char *parse_place(struct text text, struct control_request *out)
{
	uint32_t value = 0;
	if (out->has_place)
		return "a setting is given twice";
	out->has_place = enum_parse(&enum_names_residence, text.at, text.length, &value);
	out->on_host = value;
	return out->has_place ? NULL : "memory moves to host or gpu";
}

static const char *parse_cgroup(struct text text, struct control_request *out)
{
	if (*out->cgroup)
		return "a setting is given twice";
	if (!cgroup_is_path(text.at, text.length))
		return "path must be the absolute path of a cgroup, and not the root";
	memcpy(out->cgroup, text.at, text.length);
	return NULL;
}

static bool takes_slices(const struct control_request *request)
{
	return request->kind == CONTROL_MAKE || request->kind == CONTROL_RESIZE ||
	       request->kind == CONTROL_WANT;
}

/* The settings of each request about a grant, for error messages. */
static const char *const settings_of[] = {
	[CONTROL_MAKE] = "make takes name=NAME, kept=1, together=NAME, label=NAME, apart=NAME,..., "
					 "alone=1, swap=1, park-after=MILLISECONDS, park-if=wanted, "
					 "swap-wait=MILLISECONDS, overcommit=PERCENT, spill=BYTES, mps=1, owner=UID, "
					 "pid=PID, started=TICKS and "
					 "slice=...",
	[CONTROL_RESIZE] = "resize takes name=NAME, gradual=1, dry-run=1 and slice=...",
	[CONTROL_SET_STATE] = "set-state takes name=NAME and to=active, switching or parked",
	[CONTROL_MOVE] = "move takes name=NAME and to=host or gpu",
	[CONTROL_SET_CGROUP] = "set-cgroup takes name=NAME and path=PATH",
	[CONTROL_END] = "end takes name=NAME",
	[CONTROL_WANT] = "want takes slice=...",
};

static const char *parse_grant_setting(struct text value, struct control_request *out)
{
	bool has_value;
	struct text key = cut(&value, '=', &has_value);
	if (has_value && out->kind != CONTROL_WANT && equals(key, "name"))
		return parse_grant_name(value, out);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "together"))
		return parse_name(value, out->together);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "label"))
		return parse_name(value, out->neighbours.label);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "apart"))
		return parse_apart(value, &out->neighbours);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "alone"))
		return parse_alone(value, &out->neighbours);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "owner"))
		return parse_owner(value, out);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "pid"))
		return parse_pid(value, out);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "started"))
		return parse_started(value, out);
	if (has_value && takes_slices(out) && equals(key, "slice"))
		return add_slice(value, out);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "kept"))
		return parse_switch(value, &out->kept);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "swap"))
		return parse_switch(value, &out->swap);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "park-after"))
		return parse_park_after(value, out);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "park-if"))
		return parse_park_if(value, out);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "swap-wait"))
		return parse_swap_wait(value, out);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "overcommit"))
		return parse_overcommit(value, out);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "spill"))
		return parse_spill(value, out);
	if (has_value && out->kind == CONTROL_MAKE && equals(key, "mps"))
		return parse_switch(value, &out->mps);
	if (has_value && out->kind == CONTROL_RESIZE && equals(key, "gradual"))
		return parse_switch(value, &out->gradual);
	if (has_value && out->kind == CONTROL_RESIZE && equals(key, "dry-run"))
		return parse_switch(value, &out->dry_run);
	if (has_value && out->kind == CONTROL_SET_STATE && equals(key, "to"))
		return parse_state(value, out);
	if (has_value && out->kind == CONTROL_MOVE && equals(key, "to"))
		return parse_place(value, out);
	if (has_value && out->kind == CONTROL_SET_CGROUP && equals(key, "path"))
		return parse_cgroup(value, out);
	return settings_of[out->kind];
}

/* Parses what follows the name of a request about a grant. */
static const char *parse_grant(struct text rest, bool more, struct control_request *out)
{
	while (more) {
		const char *wrong = parse_grant_setting(cut(&rest, ' ', &more), out);
		if (wrong)
			return wrong;
	}
	if (!*out->name && out->kind != CONTROL_WANT)
		return "a request about a grant needs name=NAME";
	if (!out->slice_count && takes_slices(out))
		return "make, resize and want need at least one slice=...";
	if (!has_valid_owner(out))
		return "make with owner=UID needs either kept=1, or pid=PID and started=TICKS";
	if (out->swap && out->slice_count > 1)
		return "a grant with swap=1 has one slice";
	if (out->park_after_ms && !out->swap)
		return "park-after needs swap=1";
	if (out->swap_wait_ms && !out->swap)
		return "swap-wait needs swap=1";
	if (out->overcommit_percent && !out->swap)
		return "overcommit needs swap=1";
	if (out->park_if_wanted && !out->park_after_ms)
		return "park-if needs park-after=MILLISECONDS";
	if (out->spill_bytes && (out->swap || out->slice_count > 1))
		return "a grant with spill has one slice, and no swap=1";
	if (out->mps && (out->swap || out->spill_bytes || *out->together || out->slice_count > 1))
		return "a grant with mps=1 has one slice, and no swap=1, spill or together";
	bool lacks = (out->kind == CONTROL_SET_STATE && !out->has_state) ||
	             (out->kind == CONTROL_MOVE && !out->has_place) ||
	             (out->kind == CONTROL_SET_CGROUP && !*out->cgroup);
	return lacks ? settings_of[out->kind] : NULL;
}

int control_parse(const char *line, size_t len, struct control_request *out, const char **error)
{
	struct text rest = {line, len};
	bool more;
	memset(out, 0, sizeof(*out));
	struct text verb = cut(&rest, ' ', &more);
	*error = NULL;
	uint32_t kind = 0;
	bool known = enum_parse(&enum_names_request, verb.at, verb.length, &kind);
	out->kind = (enum control_kind)kind;
	if (known && out->kind >= CONTROL_MAKE)
		*error = parse_grant(rest, more, out);
	else if (!known || more)
		*error =
			"a request is status, stop, replace, may-end, limits, read-users, or make, resize, "
			"set-state, move, set-cgroup or end with name=NAME, or want";
	return *error ? -1 : 0;
}
