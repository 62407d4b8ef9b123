#include "supervise.h"

#include "arbiter.h"
#include "log.h"
#include "state.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEATHS_MOST 10
#define DEATHS_WITHIN_NS (10 * SECOND_NS)
#define END_PATIENCE_S 5

/* Says why there is no arbiter where the starting command hears it. */
static void say(const struct options *options, int announce, const char *text)
{
	if (options->foreground) {
		fprintf(stderr, "aliquot-arbiter: %s\n", text);
		return;
	}
	log_event("%s", text);
	ssize_t ignored = write(announce, text, strlen(text));
	(void)ignored;
}

/* Stdout and stderr into the log; the working directory keeps no file system busy. */
static bool move_to_background(struct state *state, struct failure *failure)
{
	int fd = state_open_log(state);
	if (fd < 0)
		return failure_set(failure, "state", "%s/arbiter.log cannot be opened: %s", state->path,
		                   strerror(-fd));
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	close(fd);
	if (chdir("/"))
		return failure_set(failure, "state", "/ cannot be entered: %s", strerror(errno));
	return true;
}

static pid_t start(const struct options *options, struct state *state, struct birth *birth,
                   int announce)
{
	pid_t parent = getpid(), child = fork();
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(0);
	exit(arbiter_run(options, state, birth, announce));
}

/* Ends the arbiter: by request, then by force. */
static void end(pid_t child)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	kill(child, SIGTERM);
	uint64_t until = loop_now() + END_PATIENCE_S * SECOND_NS;
	while (waitpid(child, NULL, WNOHANG) == 0) {
		uint64_t now = loop_now();
		if (now >= until) {
			log_event("the arbiter (pid %d) does not end: killed", (int)child);
			kill(child, SIGKILL);
			waitpid(child, NULL, 0);
			return;
		}
		struct timespec left = {.tv_sec = (time_t)((until - now) / SECOND_NS),
		                        .tv_nsec = (long)((until - now) % SECOND_NS)};
		sigtimedwait(&set, NULL, &left);
	}
}

/* Waits for the child's end or the order to end it. The child's status; -1: it was ended. */
static int wait_for(pid_t child, const sigset_t *signals)
{
	for (;;) {
		int status, number = sigwaitinfo(signals, NULL);
		if (number == SIGTERM || number == SIGINT) {
			end(child);
			return -1;
		}
		if (waitpid(child, &status, WNOHANG) == child)
			return status;
	}
}

static void log_death(pid_t child, int status, const char *why)
{
	if (WIFSIGNALED(status))
		log_event("the arbiter (pid %d) died of signal %d", (int)child, WTERMSIG(status));
	else
		log_event("the arbiter (pid %d) ended with code %d%s%s", (int)child, WEXITSTATUS(status),
		          *why ? ": " : "", why);
}

static int keep_alive(const struct options *options, struct state *state, struct birth *birth,
                      int announce, const sigset_t *signals)
{
	uint64_t deaths[DEATHS_MOST] = {0};
	for (unsigned count = 0;; count++) {
		birth->error[0] = 0;
		pid_t child = start(options, state, birth, announce);
		if (child < 0) {
			say(options, announce, "the arbiter cannot be started: no new process");
			return EXIT_FAILED;
		}
		int status = wait_for(child, signals);
		if (status == -1 || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
			return 0;
		if (!atomic_load(&birth->ready)) {
			say(options, announce, *birth->error ? birth->error : "the arbiter died at its start");
			return EXIT_FAILED;
		}
		log_death(child, status, birth->error);
		deaths[count % DEATHS_MOST] = loop_now();
		uint64_t oldest = deaths[(count + 1) % DEATHS_MOST];
		if (oldest && loop_now() - oldest < DEATHS_WITHIN_NS) {
			log_event("the arbiter died %d times within 10 seconds: giving up", DEATHS_MOST);
			return EXIT_FAILED;
		}
	}
}

int supervise(const struct options *options, int announce)
{
	struct state state;
	struct failure failure;
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	struct birth *birth = mmap(NULL, sizeof(*birth), PROT_READ | PROT_WRITE,
	                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (birth == MAP_FAILED) {
		say(options, announce, "out of memory");
		return EXIT_FAILED;
	}
	if (!state_open(&state, options->state, &failure)) {
		say(options, announce, failure.text);
		return strcmp(failure.code, "locked") ? EXIT_FAILED : EXIT_LOCKED;
	}
	if ((!options->foreground && !move_to_background(&state, &failure)) ||
	    !state_write_pid(&state, getpid(), &failure)) {
		say(options, announce, failure.text);
		return EXIT_FAILED;
	}
	int code = keep_alive(options, &state, birth, announce, &signals);
	state_remove_pid(&state);
	return code;
}
