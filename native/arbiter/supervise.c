#include "supervise.h"

#include "arbiter.h"
#include "keeper.h"
#include "log.h"
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEATHS_MOST 10
#define DEATHS_WITHIN_NS (10 * SECOND_NS)
#define END_PATIENCE_NS (5 * SECOND_NS)
#define NEVER UINT64_MAX

struct parent {
	const struct options *options;
	int announce;
	struct state state;
	struct birth *birth;
	struct keeper keeper;
	int signals;    /* a signalfd */
	char worth[16]; /* to the kernel when memory runs out, as we found it */
};

/* Says why there is no arbiter where the starting command hears it. */
static void say(const struct parent *parent, const char *text)
{
	if (parent->options->foreground) {
		fprintf(stderr, "aliquot-arbiter: %s\n", text);
		return;
	}
	log_event("%s", text);
	ssize_t ignored = write(parent->announce, text, strlen(text));
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

static const char worth_file[] = "/proc/self/oom_score_adj";

static void write_worth(const char *worth)
{
	int fd = open(worth_file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t ignored = write(fd, worth, strlen(worth));
	(void)ignored;
	close(fd);
}

static void read_worth(char worth[static 16])
{
	int fd = open(worth_file, O_RDONLY | O_CLOEXEC);
	ssize_t used = fd < 0 ? 0 : read(fd, worth, 15);
	worth[used > 0 ? used : 0] = 0;
	if (fd >= 0)
		close(fd);
}

static void be_parent(struct parent *parent)
{
	prctl(PR_SET_NAME, "aliquot-keeper");
	read_worth(parent->worth);
	write_worth("-1000");
}

static void be_child(struct parent *parent)
{
	prctl(PR_SET_NAME, "aliquot-arbiter");
	write_worth(parent->worth);
	close(parent->signals);
	keeper_be_child(&parent->keeper);
}

/* The child, or -1. */
static pid_t start(struct parent *parent)
{
	if (keeper_prepare(&parent->keeper))
		return -1;
	pid_t self = getpid(), child = fork();
	if (child) {
		keeper_be_parent(&parent->keeper);
		return child;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != self)
		_exit(0);
	be_child(parent);
	exit(arbiter_run(parent->options, &parent->state, parent->birth, &parent->keeper,
	                 parent->announce));
}

/* The next signal, with what the child hands over kept meanwhile. 0: none came until then. */
static int next_signal(struct parent *parent, uint64_t until)
{
	struct signalfd_siginfo info;
	for (;;) {
		struct pollfd pollers[] = {{.fd = parent->signals, .events = POLLIN},
		                           {.fd = parent->keeper.parent_end, .events = POLLIN}};
		uint64_t now = loop_now(), left = until > now ? until - now : 0;
		struct timespec patience = {.tv_sec = (time_t)(left / SECOND_NS),
		                            .tv_nsec = (long)(left % SECOND_NS)};
		int ready = ppoll(pollers, 2, until == NEVER ? NULL : &patience, NULL);
		if (ready == 0)
			return 0;
		if (ready > 0 && pollers[1].revents)
			keeper_serve(&parent->keeper);
		if (read(parent->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
			return (int)info.ssi_signo;
	}
}

/* Ends the arbiter: by request, then by force. */
static void end(struct parent *parent, pid_t child)
{
	kill(child, SIGTERM);
	uint64_t until = loop_now() + END_PATIENCE_NS;
	while (waitpid(child, NULL, WNOHANG) == 0) {
		if (next_signal(parent, until))
			continue;
		log_event("the arbiter (pid %d) does not end: killed", (int)child);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		return;
	}
}

/* Waits for the child's end or the order to end it. The child's status; -1: it was ended. */
static int wait_for(struct parent *parent, pid_t child)
{
	for (;;) {
		int status, number = next_signal(parent, NEVER);
		if (number == SIGTERM || number == SIGINT) {
			end(parent, child);
			return -1;
		}
		if (waitpid(child, &status, WNOHANG | WUNTRACED) != child)
			continue;
		if (!WIFSTOPPED(status))
			return status;
		log_event("the arbiter (pid %d) is stopped: killed, for another to go on", (int)child);
		kill(child, SIGKILL);
	}
}

static void log_death(pid_t child, int status, const char *why, unsigned opened)
{
	if (WIFSIGNALED(status))
		log_event("the arbiter (pid %d) died of signal %d", (int)child, WTERMSIG(status));
	else
		log_event("the arbiter (pid %d) ended with code %d%s%s", (int)child, WEXITSTATUS(status),
		          *why ? ": " : "", why);
	log_event("the gates of %u processes are open until the arbiter is back", opened);
}

static int keep_alive(struct parent *parent)
{
	struct birth *birth = parent->birth;
	uint64_t deaths[DEATHS_MOST] = {0};
	for (unsigned count = 0;; count++) {
		birth->error[0] = 0;
		pid_t child = start(parent);
		if (child < 0) {
			say(parent, "the arbiter cannot be started: no new process");
			return EXIT_FAILED;
		}
		int status = wait_for(parent, child);
		unsigned opened = keeper_open_gates(&parent->keeper);
		if (status == -1 || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
			return 0;
		if (!atomic_load(&birth->ready)) {
			say(parent, *birth->error ? birth->error : "the arbiter died at its start");
			return EXIT_FAILED;
		}
		log_death(child, status, birth->error, opened);
		deaths[count % DEATHS_MOST] = loop_now();
		uint64_t oldest = deaths[(count + 1) % DEATHS_MOST];
		if (oldest && loop_now() - oldest < DEATHS_WITHIN_NS) {
			log_event("the arbiter died %d times within 10 seconds: giving up", DEATHS_MOST);
			return EXIT_FAILED;
		}
	}
}

/* What both processes share, and the signals that the parent waits for. */
static bool prepare(struct parent *parent)
{
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	keeper_init(&parent->keeper);
	parent->signals = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
	parent->birth = mmap(NULL, sizeof(*parent->birth), PROT_READ | PROT_WRITE,
	                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return parent->signals >= 0 && parent->birth != MAP_FAILED;
}

int supervise(const struct options *options, int announce)
{
	struct parent parent = {.options = options, .announce = announce};
	struct failure failure;
	if (!prepare(&parent)) {
		say(&parent, strerror(errno));
		return EXIT_FAILED;
	}
	if (!state_open(&parent.state, options->state, &failure)) {
		say(&parent, failure.text);
		return strcmp(failure.code, "locked") ? EXIT_FAILED : EXIT_LOCKED;
	}
	if ((!options->foreground && !move_to_background(&parent.state, &failure)) ||
	    !state_write_pid(&parent.state, getpid(), &failure)) {
		say(&parent, failure.text);
		return EXIT_FAILED;
	}
	be_parent(&parent);
	int code = keep_alive(&parent);
	keeper_close(&parent.keeper);
	state_remove_pid(&parent.state);
	return code;
}
