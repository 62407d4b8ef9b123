#include "options.h"

#include "mps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"usage: aliquot-arbiter --state DIR --nvml PATH [--cuda PATH] [--host-memory BYTES]\n"
	"                       [--overcommit PERCENT] [--users FILE] [--linger SECONDS]\n"
	"                       [--mps GPUS] [--unjoined POLICY]\n"
	"                       [--admission WHO] [--foreground | --check]\n"
	"Decides which program may use a GPU now. `aliquot run` starts it; you rarely need to.\n"
	"  --state DIR        directory of the grants; one arbiter per directory\n"
	"  --nvml PATH        the libnvidia-ml.so.1 to use\n"
	"  --cuda PATH        the libcuda.so.1 to move memory with; without it no memory can leave its "
	"GPU\n"
	"  --host-memory BYTES\n"
	"                     of the host, at most, for memory that has left its GPU (default: 60 % of "
	"the\n"
	"                     host's memory)\n"
	"  --overcommit PERCENT\n"
	"                     of each GPU's memory, that slices may have together whose memory can "
	"leave:\n"
	"                     above 100 (the default) they take turns with it\n"
	"  --mps GPUS         the GPUs whose slices may be clients of an MPS server: all (the "
	"default), "
	"none,\n"
	"                     or UUIDs separated by commas\n"
	"  --users FILE       limits of users, lines of: user NAME memory 40GiB compute 50 grants 4\n"
	"                     (NAME * is everybody else); FILE may be missing\n"
	"  --linger SECONDS   end this long after the last grant has ended (0, the default: never)\n"
	"  --unjoined POLICY  what to do with a process that uses a GPU in a grant's cgroup and has "
	"not\n"
	"                     joined the grant: report (the default), or end\n"
	"  --admission WHO    who may ask for grants: users (the default), or pool: only root, which "
	"runs\n"
	"                     the pool of this machine\n"
	"  --foreground       do not go into the background; log to stderr\n"
	"  --check            start nothing; print what keeps an arbiter from starting, if anything\n"
	"example: aliquot-arbiter --state /run/aliquot --nvml libnvidia-ml.so.1 --foreground\n";

#define MAX_LINGER 1000000000ul

static bool parse_seconds(const char *text, unsigned *out)
{
	if (!*text || strspn(text, "0123456789") != strlen(text) || strlen(text) > 10)
		return false;
	unsigned long value = strtoul(text, NULL, 10);
	*out = (unsigned)value;
	return value <= MAX_LINGER;
}

static bool parse_bytes(const char *text, uint64_t *out)
{
	if (!*text || strspn(text, "0123456789") != strlen(text) || strlen(text) > 18)
		return false;
	*out = strtoull(text, NULL, 10);
	return *out > 0;
}

#define OVERCOMMIT_MOST 1000u

static bool parse_overcommit(const char *text, unsigned *out)
{
	return parse_seconds(text, out) && *out >= 100 && *out <= OVERCOMMIT_MOST;
}

static int usage_error(const char *what, const char *which)
{
	fprintf(stderr, "aliquot-arbiter: %s%s\n%s", what, which, usage);
	return EXIT_USAGE;
}

int options_parse(int argc, char **argv, struct options *out)
{
	memset(out, 0, sizeof(*out));
	out->overcommit_percent = 100;
	for (int i = 1; i < argc; i++) {
		const char *option = argv[i];
		if (!strcmp(option, "--help")) {
			fputs(usage, stdout);
			return 0;
		}
		if (!strcmp(option, "--foreground")) {
			out->foreground = true;
			continue;
		}
		if (!strcmp(option, "--check")) {
			out->check = true;
			continue;
		}
		bool known = !strcmp(option, "--state") || !strcmp(option, "--nvml") ||
		             !strcmp(option, "--cuda") || !strcmp(option, "--host-memory") ||
		             !strcmp(option, "--overcommit") || !strcmp(option, "--users") ||
		             !strcmp(option, "--mps") || !strcmp(option, "--linger") ||
		             !strcmp(option, "--unjoined") || !strcmp(option, "--admission");
		if (!known)
			return usage_error("unknown option ", option);
		if (++i == argc)
			return usage_error("a value is missing after ", option);
		if (!strcmp(option, "--state"))
			out->state = argv[i];
		else if (!strcmp(option, "--nvml"))
			out->nvml = argv[i];
		else if (!strcmp(option, "--cuda"))
			out->cuda = argv[i];
		else if (!strcmp(option, "--users"))
			out->users = argv[i];
		else if (!strcmp(option, "--mps")) {
			if (!mps_is_policy(argv[i]))
				return usage_error("not all, none, or UUIDs of GPUs: ", argv[i]);
			out->mps = argv[i];
		} else if (!strcmp(option, "--host-memory")) {
			if (!parse_bytes(argv[i], &out->host_bytes))
				return usage_error("not a number of bytes: ", argv[i]);
		} else if (!strcmp(option, "--overcommit")) {
			if (!parse_overcommit(argv[i], &out->overcommit_percent))
				return usage_error("not a percentage from 100 to 1000: ", argv[i]);
		} else if (!strcmp(option, "--unjoined")) {
			out->ends_unjoined = !strcmp(argv[i], "end");
			if (!out->ends_unjoined && strcmp(argv[i], "report"))
				return usage_error("not report or end: ", argv[i]);
		} else if (!strcmp(option, "--admission")) {
			out->pool_admits = !strcmp(argv[i], "pool");
			if (!out->pool_admits && strcmp(argv[i], "users"))
				return usage_error("not users or pool: ", argv[i]);
		} else if (!parse_seconds(argv[i], &out->linger_seconds))
			return usage_error("not a number of seconds: ", argv[i]);
	}
	if (!out->state || !*out->state)
		return usage_error("--state is missing", "");
	if (!out->check && (!out->nvml || !*out->nvml))
		return usage_error("--nvml is missing", "");
	if (out->users && *out->users != '/')
		return usage_error("--users must be an absolute path: ", out->users);
	return -1;
}
