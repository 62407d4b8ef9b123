/* users_parse: what it accepts is within the bounds that the arbiter relies on. */
#include "users_parse.h"

#include <stdlib.h>
#include <string.h>

#define MUST(condition)                                                                            \
	do {                                                                                           \
		if (!(condition))                                                                          \
			abort();                                                                               \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct user_lines lines;
	uint32_t number = 0;
	const char *error = NULL;
	memset(&lines, 0xa5, sizeof(lines));
	if (users_parse((const char *)data, size, &lines, &number, &error)) {
		MUST(error && *error && number >= 1);
		return 0;
	}
	MUST(!error && lines.count <= USERS_MOST);
	for (uint32_t i = 0; i < lines.count; i++) {
		const struct user_line *line = &lines.lines[i];
		size_t length = strnlen(line->name, sizeof(line->name));
		MUST(length && length < sizeof(line->name));
		MUST(line->given && !(line->given & ~7u));
		MUST(line->number >= 1 && (!i || line->number > line[-1].number));
		MUST(line->compute_percent <= USERS_MOST_PERCENT && line->grants <= USERS_MOST_GRANTS);
		MUST(line->given & USERS_MEMORY || !line->memory_bytes);
		MUST(line->memory_bytes <= UINT64_C(1) << 60);
		for (uint32_t other = 0; other < i; other++)
			MUST(strcmp(lines.lines[other].name, line->name));
	}
	return 0;
}
