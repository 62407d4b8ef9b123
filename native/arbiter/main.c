/* aliquot-arbiter: the process that decides which program may use a GPU now. */
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
	/* It may be inherited as ignored: then waitpid would not work. */
	signal(SIGCHLD, SIG_DFL);
	int code = options_parse(argc, argv, &options);
	if (code >= 0)
		return code;
	/* The background process has another working directory. A bare name is left to the linker. */
	if (strchr(options.nvml, '/') && realpath(options.nvml, nvml))
		options.nvml = nvml;
	return options.foreground ? supervise_run(&options, STDOUT_FILENO) : daemon_start(&options);
}
