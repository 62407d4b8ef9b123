/* Reads the shape of the simulated machine. See shape.h. */
#include "shape.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ull << 20)

/* The path of shapes.conf: in the folder of the library that this code is in. */
static bool conf_path(char *out, size_t size)
{
	Dl_info info;
	if (!dladdr((void *)shape_read, &info) || !info.dli_fname)
		return false;
	const char *slash = strrchr(info.dli_fname, '/');
	int folder = slash ? (int)(slash - info.dli_fname) : 1;
	int n = snprintf(out, size, "%.*s/shapes.conf", folder, slash ? info.dli_fname : ".");
	return n > 0 && (size_t)n < size;
}

/* Reads up to SIM_MAX_GPUS numbers in `base`. If there are fewer, hexadecimal ones count on and decimal
 * ones repeat the last. */
static void read_list(const char *text, int base, uint32_t *out)
{
	uint32_t n = 0;
	for (char *end; n < SIM_MAX_GPUS; text = end) {
		unsigned long value = strtoul(text, &end, base);
		if (end == text)
			break;
		out[n++] = (uint32_t)value;
	}
	for (uint32_t given = n; n < SIM_MAX_GPUS; n++)
		out[n] = given ? out[n - 1] + (base == 16) : n;
}

static void read_links(struct sim_shape *s, const char *value)
{
	char kind[16] = "";
	sscanf(value, "%15s %u", kind, &s->link_count);
	s->links = !strcmp(kind, "nvswitch") ? SIM_NVSWITCH
	           : !strcmp(kind, "pairs")  ? SIM_PAIRS
	                                     : SIM_PCIE;
}

/* Reads NAME KIND ID SLICES SMS MIB MOST SIZE@START,START,... */
static void read_profile(struct sim_shape *s, const char *value)
{
	struct sim_profile p = {0};
	unsigned long long mib;
	int at = 0;
	if (s->profile_count == SIM_MAX_PROFILES ||
	    sscanf(value, "%15s %u %u %u %u %llu %u %u%n", p.name, &p.kind, &p.id, &p.slices, &p.sms,
	           &mib, &p.most, &p.size, &at) != 8)
		return;
	p.memory = mib * MIB;
	for (const char *next = value + at; *next == '@' || *next == ','; next += 2)
		p.starts |= 1u << (next[1] - '0');
	s->profiles[s->profile_count++] = p;
}

static void read_setting(struct sim_shape *s, const char *key, const char *value)
{
	uint64_t number = strtoull(value, NULL, 10);
	if (!strcmp(key, "name"))
		snprintf(s->name, sizeof(s->name), "%.63s", value);
	else if (!strcmp(key, "memory"))
		s->memory = number * MIB;
	else if (!strcmp(key, "reserved"))
		s->reserved = number * 1024;
	else if (!strcmp(key, "context"))
		s->context = number * MIB;
	else if (!strcmp(key, "capability"))
		sscanf(value, "%u.%u", &s->major, &s->minor);
	else if (!strcmp(key, "sms"))
		s->sms = (uint32_t)number;
	else if (!strcmp(key, "cores"))
		s->cores = (uint32_t)number;
	else if (!strcmp(key, "l2"))
		s->l2 = number * MIB;
	else if (!strcmp(key, "shared"))
		s->shared = number * 1024;
	else if (!strcmp(key, "clock"))
		sscanf(value, "%u %u", &s->clock, &s->memory_clock);
	else if (!strcmp(key, "bus"))
		s->bus = (uint32_t)number;
	else if (!strcmp(key, "power"))
		s->power = (uint32_t)number;
	else if (!strcmp(key, "pcie"))
		sscanf(value, "%u %u", &s->pcie_generation, &s->pcie_lanes);
	else if (!strcmp(key, "device"))
		sscanf(value, "%x %x", &s->device, &s->subsystem);
	else if (!strcmp(key, "links"))
		read_links(s, value);
	else if (!strcmp(key, "buses"))
		read_list(value, 16, s->buses);
	else if (!strcmp(key, "numa"))
		read_list(value, 10, s->numa);
	else if (!strcmp(key, "switch"))
		s->on_switch = (uint32_t)number;
	else if (!strcmp(key, "mig"))
		read_profile(s, value);
}

/* Reads the section of s->model; false: there is none. */
static bool read_conf(struct sim_shape *s, FILE *file)
{
	char line[256], section[16] = "";
	bool found = false;
	while (fgets(line, sizeof(line), file)) {
		char key[16], value[128];
		if (sscanf(line, " [%15[^]]]", section) == 1)
			found |= !strcmp(section, s->model);
		else if (!strcmp(section, s->model) &&
		         sscanf(line, " %15[a-z0-9] = %127[^\n]", key, value) == 2)
			read_setting(s, key, value);
	}
	return found;
}

/* Reads MODEL:COUNT, or MODEL for one GPU. */
static bool read_choice(struct sim_shape *s, const char *choice)
{
	char rest = 0;
	int fields = sscanf(choice, "%15[a-z0-9]:%u%c", s->model, &s->count, &rest);
	if (fields == 1 && !strchr(choice, ':'))
		s->count = 1;
	else if (fields != 2)
		return false;
	return s->count >= 1 && s->count <= SIM_MAX_GPUS;
}

bool shape_read(struct sim_shape *shape, const char *choice, char *why, size_t size)
{
	memset(shape, 0, sizeof(*shape));
	if (!read_choice(shape, choice)) {
		snprintf(why, size, "ALIQUOT_SIMULATE=%.40s is not MODEL:COUNT with 1 to %u GPUs", choice,
		         SIM_MAX_GPUS);
		return false;
	}
	char path[PATH_MAX];
	FILE *file = conf_path(path, sizeof(path)) ? fopen(path, "re") : NULL;
	if (!file) {
		snprintf(why, size, "cannot read shapes.conf in the folder of the library: %s",
		         strerror(errno));
		return false;
	}
	bool found = read_conf(shape, file);
	fclose(file);
	if (!found)
		snprintf(why, size, "no model %s in shapes.conf", shape->model);
	return found;
}

bool shape_linked(const struct sim_shape *shape, uint32_t a, uint32_t b)
{
	if (a == b || shape->links == SIM_PCIE)
		return false;
	return shape->links == SIM_NVSWITCH || a / 2 == b / 2;
}

void shape_bus_id(const struct sim_shape *shape, uint32_t gpu, int digits, char *out, size_t size)
{
	snprintf(out, size, "%0*X:%02X:00.0", digits, 0, shape->buses[gpu]);
}
