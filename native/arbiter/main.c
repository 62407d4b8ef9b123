/* aliquot-arbiter: the process that decides which program may use a GPU now. */
#include "daemon.h"
#include "options.h"
#include "state.h"
#include "supervise.h"
#include "users.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int report(const struct failure *failure)
{
	printf("%s\t%s\n", failure->code, failure->text);
	return EXIT_FAILED;
}

/* Prints what keeps an arbiter from starting there, a line each: the failure's code, a tab, the
 * sentence. */
static int check(const struct options *options)
{
	struct failure failure;
	struct users users = {.path = options->users};
	int code = state_check_version(options->state, &failure) ? 0 : report(&failure);
	if (users.path && !users_read(&users, &failure))
		code = report(&failure);
	users_free(&users);
	return code;
}

int main(int argc, char **argv)
{
	struct options options;
	char nvml[PATH_MAX], cuda[PATH_MAX];
	/* It may be inherited as ignored: then waitpid would not work. */
	signal(SIGCHLD, SIG_DFL);
	int code = options_parse(argc, argv, &options);
	if (code >= 0)
		return code;
	if (options.check)
		return check(&options);
	/* The background process has another working directory. A bare name is left to the linker. */
	if (strchr(options.nvml, '/') && realpath(options.nvml, nvml))
		options.nvml = nvml;
	if (options.cuda && strchr(options.cuda, '/') && realpath(options.cuda, cuda))
		options.cuda = cuda;
	return options.foreground ? supervise_run(&options, STDOUT_FILENO) : daemon_start(&options);
}
