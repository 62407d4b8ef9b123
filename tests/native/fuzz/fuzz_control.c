/* control_parse: what it accepts is within the bounds that the arbiter relies on. */
#include "control_parse.h"

#include <stdlib.h>
#include <string.h>

#define MUST(condition)                                                                            \
	do {                                                                                           \
		if (!(condition))                                                                          \
			abort();                                                                               \
	} while (0)

static void check_slice(const struct control_request *request, uint32_t i)
{
	const struct control_slice *slice = &request->slices[i];
	unsigned all = CONTROL_MEMORY | CONTROL_COMPUTE | CONTROL_POLICY | CONTROL_PRIORITY;
	MUST(slice->given && !(slice->given & ~all));
	MUST(request->kind == CONTROL_RESIZE || slice->given & CONTROL_MEMORY);
	if (slice->given & CONTROL_MEMORY)
		MUST(slice->memory_bytes >= CONTROL_LEAST_BYTES);
	else
		MUST(!slice->memory_bytes);
	MUST(slice->compute_percent <= 100);
	MUST(slice->policy == ALIQUOT_ELASTIC || slice->policy == ALIQUOT_HARD);
	MUST(slice->priority <= ALIQUOT_BACKGROUND);
	for (uint32_t other = 0; other < i; other++)
		MUST(memcmp(request->slices[other].uuid, slice->uuid, sizeof(slice->uuid)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct control_request request;
	const char *error = NULL;
	if (control_parse((const char *)data, size, &request, &error)) {
		MUST(error && *error);
		return 0;
	}
	MUST(!error);
	MUST(!request.gradual || request.kind == CONTROL_RESIZE);
	MUST(!request.dry_run || request.kind == CONTROL_RESIZE);
	const struct neighbours *neighbours = &request.neighbours;
	MUST(memchr(neighbours->label, 0, sizeof(neighbours->label)) && neighbours->alone <= 1);
	MUST(request.kind == CONTROL_MAKE ||
	     (!*neighbours->label && !*neighbours->apart[0] && !neighbours->alone));
	for (unsigned i = 0; i < NEIGHBOURS_MOST; i++) {
		MUST(memchr(neighbours->apart[i], 0, sizeof(neighbours->apart[i])));
		size_t length = strlen(neighbours->apart[i]);
		MUST(!length || control_is_name(neighbours->apart[i], length));
		MUST(!length || !i || *neighbours->apart[i - 1]);
	}
	size_t together = strnlen(request.together, sizeof(request.together));
	MUST(!together ||
	     (request.kind == CONTROL_MAKE && control_is_name(request.together, together)));
	MUST(!request.kept || request.kind == CONTROL_MAKE);
	MUST(request.has_state == (request.kind == CONTROL_SET_STATE));
	MUST(request.grant_state <= ALIQUOT_GRANT_PARKED);
	MUST(request.has_place == (request.kind == CONTROL_MOVE));
	MUST(request.has_place || !request.on_host);
	MUST(!request.park_after_ms || request.swap);
	MUST(!request.park_if_wanted || request.park_after_ms);
	MUST(!request.spill_bytes || (request.kind == CONTROL_MAKE && request.slice_count == 1 &&
	                              !request.swap && request.spill_bytes >= CONTROL_LEAST_BYTES));
	MUST(!request.swap || (request.kind == CONTROL_MAKE && request.slice_count == 1));
	if (request.kind < CONTROL_MAKE)
		return 0;
	bool has_pid = request.owner_pid != 0;
	MUST(request.owner_pid >= 0 && has_pid == request.has_started);
	MUST(request.has_started || !request.owner_started);
	MUST(!has_pid || (request.kind == CONTROL_MAKE && request.has_owner != request.kept));
	MUST(request.kind != CONTROL_MAKE || !request.has_owner || request.kept != has_pid);
	MUST(request.has_owner ? request.owner_uid < UINT32_MAX : !request.owner_uid);
	size_t name = strnlen(request.name, sizeof(request.name));
	MUST(request.kind == CONTROL_WANT ? !name : control_is_name(request.name, name));
	size_t cgroup = strnlen(request.cgroup, sizeof(request.cgroup));
	MUST(request.kind == CONTROL_SET_CGROUP ? cgroup > 0 && cgroup < sizeof(request.cgroup)
	                                        : cgroup == 0);
	if (request.kind == CONTROL_END || request.kind == CONTROL_SET_STATE ||
	    request.kind == CONTROL_MOVE || request.kind == CONTROL_SET_CGROUP) {
		MUST(!request.slice_count);
		return 0;
	}
	MUST(request.slice_count >= 1 && request.slice_count <= ALIQUOT_MAX_GPUS);
	for (uint32_t i = 0; i < request.slice_count; i++)
		check_slice(&request, i);
	return 0;
}
