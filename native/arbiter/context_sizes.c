#include "context_sizes.h"

#include "log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "contexts"
#define FILE_MOST 8192u /* beyond it the oldest lines are dropped */
#define LINE_MOST 256u

/* One line of the file. */
struct size {
	uint64_t bytes;
	const char *driver, *model;
};

/* Cuts a line into its words, in place. False: it is none of ours. */
static bool parse(char *line, struct size *out)
{
	char *end = line, *driver = strchr(line, ' '), *model = driver ? strchr(driver + 1, ' ') : NULL;
	if (!model || *line < '1' || *line > '9')
		return false;
	out->bytes = strtoull(line, &end, 10);
	if (end != driver)
		return false;
	*model = 0;
	out->driver = driver + 1;
	out->model = model + 1;
	return true;
}

/* The file as text; the caller frees it. Empty if there is none, NULL: out of memory. */
static char *read_text(const struct state *state)
{
	char *text = calloc(1, FILE_MOST + 1);
	int fd = openat(state->directory, NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (text && fd >= 0) {
		ssize_t used = read(fd, text, FILE_MOST);
		text[used > 0 ? used : 0] = 0;
	}
	if (fd >= 0)
		close(fd);
	return text;
}

static bool is_of(const struct size *size, const struct nvml *nvml, const struct gpu *gpu)
{
	return !strcmp(size->driver, nvml->driver_version) && !strcmp(size->model, gpu->name);
}

void context_sizes_read(const struct state *state, struct nvml *nvml)
{
	char *text = read_text(state), *rest = text, *line;
	struct size size;
	while (text && (line = strsep(&rest, "\n"))) {
		if (!parse(line, &size))
			continue;
		for (unsigned i = 0; i < nvml->gpu_count; i++)
			if (!nvml->gpus[i].context_bytes && is_of(&size, nvml, &nvml->gpus[i]) &&
			    size.bytes < nvml->gpus[i].memory_bytes)
				nvml->gpus[i].context_bytes = size.bytes;
	}
	free(text);
}

/* Copies the lines that are not of this GPU, as many as there is room for. */
static void copy_others(char *text, const struct nvml *nvml, const struct gpu *gpu, char *out)
{
	char *line;
	struct size size;
	const char *end = out + FILE_MOST - 2 * LINE_MOST;
	*out = 0;
	while (out < end && (line = strsep(&text, "\n")))
		if (strlen(line) < LINE_MOST && parse(line, &size) && !is_of(&size, nvml, gpu))
			out += sprintf(out, "%llu %s %s\n", (unsigned long long)size.bytes, size.driver,
			               size.model);
}

void context_sizes_keep(const struct state *state, const struct nvml *nvml, const struct gpu *gpu)
{
	char *before = read_text(state), *after = malloc(FILE_MOST + 1);
	if (before && after && *nvml->driver_version && !strpbrk(nvml->driver_version, " \n") &&
	    !strchr(gpu->name, '\n')) {
		/* The newest line first: it stays the longest. */
		size_t used = (size_t)snprintf(after, LINE_MOST, "%llu %s %s\n",
		                               (unsigned long long)gpu->context_bytes, nvml->driver_version,
		                               gpu->name);
		copy_others(before, nvml, gpu, after + used);
		int error = state_write_file(state, NAME, after);
		if (error)
			log_event("%s/" NAME " cannot be written: %s", state->path, strerror(-error));
	}
	free(before);
	free(after);
}
