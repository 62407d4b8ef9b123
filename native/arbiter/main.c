/* aliquot-arbiter: the one process on a machine that decides who may use a GPU now. */
#include "daemon.h"
#include "options.h"
#include "supervise.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct options options;
	char nvml[PATH_MAX];
	/* Whoever started us may ignore it: then no child could be waited for. */
	signal(SIGCHLD, SIG_DFL);
	int code = options_parse(argc, argv, &options);
	if (code >= 0)
		return code;
	/* In the background the working directory is another; a bare name is the linker's to find. */
	if (strchr(options.nvml, '/') && realpath(options.nvml, nvml))
		options.nvml = nvml;
	return options.foreground ? supervise(&options, STDOUT_FILENO) : daemon_start(&options);
}
