#include "supervise.h"

#include "arbiter.h"
#include "log.h"
#include "page_store.h"
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
#define END_TIMEOUT_NS (5 * SECOND_NS)
#define NEVER UINT64_MAX

struct parent {
	const struct options *options;
	int announce;
	struct state state;
	struct startup *startup;
	struct page_store page_store;
	int signals;        /* a signalfd */
	char oom_score[16]; /* oom_score_adj at the start, for the child */
};

/* Reports why no arbiter runs to the command that started us. */
static void report(const struct parent *parent, const char *text)
{
	if (parent->options->foreground) {
		fprintf(stderr, "aliquot-arbiter: %s\n", text);
		return;
	}
	log_event("%s", text);
	ssize_t ignored = write(parent->announce, text, strlen(text));
	(void)ignored;
}

/* Sends stdout and stderr to the log, and leaves the working directory so that its file system can be
 * unmounted. */
static bool move_to_background(struct state *state, struct failure *failure)
{
	int error = log_to_file(state->directory);
	if (error)
		return failure_set(failure, "state", "%s/arbiter.log cannot be opened: %s", state->path,
		                   strerror(-error));
	if (chdir("/"))
		return failure_set(failure, "state", "/ cannot be entered: %s", strerror(errno));
	return true;
}

static const char oom_score_file[] = "/proc/self/oom_score_adj";

static void write_oom_score(const char *score)
{
	int fd = open(oom_score_file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t ignored = write(fd, score, strlen(score));
	(void)ignored;
	close(fd);
}

static void read_oom_score(char score[static 16])
{
	int fd = open(oom_score_file, O_RDONLY | O_CLOEXEC);
	ssize_t used = fd < 0 ? 0 : read(fd, score, 15);
	score[used > 0 ? used : 0] = 0;
	if (fd >= 0)
		close(fd);
}

static void be_parent(struct parent *parent)
{
	prctl(PR_SET_NAME, "aliquot-parent");
	read_oom_score(parent->oom_score);
	write_oom_score("-1000");
}

static void be_child(struct parent *parent)
{
	prctl(PR_SET_NAME, "aliquot-arbiter");
	write_oom_score(parent->oom_score);
	close(parent->signals);
	page_store_be_child(&parent->page_store);
}

/* The child's pid, or -1. */
static pid_t start_child(struct parent *parent)
{
	if (page_store_prepare(&parent->page_store))
		return -1;
	pid_t self = getpid(), child = fork();
	if (child) {
		page_store_be_parent(&parent->page_store);
		return child;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != self)
		_exit(0);
	be_child(parent);
	exit(arbiter_run(parent->options, &parent->state, parent->startup, &parent->page_store,
	                 parent->announce));
}

/* Waits for the next signal and serves the child meanwhile. 0: none came until then. */
static int next_signal(struct parent *parent, uint64_t until)
{
	struct signalfd_siginfo info;
	for (;;) {
		struct pollfd pollers[] = {{.fd = parent->signals, .events = POLLIN},
		                           {.fd = parent->page_store.parent_end, .events = POLLIN}};
		uint64_t now = loop_now(), remaining = until > now ? until - now : 0;
		struct timespec timeout = {.tv_sec = (time_t)(remaining / SECOND_NS),
		                           .tv_nsec = (long)(remaining % SECOND_NS)};
		int ready = ppoll(pollers, 2, until == NEVER ? NULL : &timeout, NULL);
		if (ready == 0)
			return 0;
		if (ready > 0 && pollers[1].revents)
			page_store_serve(&parent->page_store);
		if (read(parent->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
			return (int)info.ssi_signo;
	}
}

/* Ends the arbiter: with SIGTERM, then with SIGKILL. */
static void end_child(struct parent *parent, pid_t child)
{
	kill(child, SIGTERM);
	uint64_t until = loop_now() + END_TIMEOUT_NS;
	while (waitpid(child, NULL, WNOHANG) == 0) {
		if (next_signal(parent, until))
			continue;
		log_event("the arbiter (pid %d) did not end in time: killed", (int)child);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		return;
	}
}

/* Waits for the child to end, or for a signal to end it. The child's status; -1: it was ended. */
static int wait_for_child(struct parent *parent, pid_t child)
{
	for (;;) {
		int status, number = next_signal(parent, NEVER);
		if (number == SIGTERM || number == SIGINT) {
			end_child(parent, child);
			return -1;
		}
		if (waitpid(child, &status, WNOHANG | WUNTRACED) != child)
			continue;
		if (!WIFSTOPPED(status))
			return status;
		log_event("the arbiter (pid %d) was stopped: killed and restarted", (int)child);
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
	log_event("opened the gates of %u processes until the arbiter is back", opened);
}

static int keep_alive(struct parent *parent)
{
	struct startup *startup = parent->startup;
	uint64_t deaths[DEATHS_MOST] = {0};
	for (unsigned count = 0;; count++) {
		startup->error[0] = 0;
		pid_t child = start_child(parent);
		if (child < 0) {
			report(parent, "the arbiter cannot be started: fork failed");
			return EXIT_FAILED;
		}
		int status = wait_for_child(parent, child);
		unsigned opened = page_store_open_gates(&parent->page_store);
		if (status == -1 || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
			return 0;
		if (!atomic_load(&startup->ready)) {
			report(parent, *startup->error ? startup->error : "the arbiter died while starting");
			return EXIT_FAILED;
		}
		log_death(child, status, startup->error, opened);
		deaths[count % DEATHS_MOST] = loop_now();
		uint64_t oldest = deaths[(count + 1) % DEATHS_MOST];
		if (oldest && loop_now() - oldest < DEATHS_WITHIN_NS) {
			log_event("the arbiter died %d times within 10 seconds: giving up", DEATHS_MOST);
			return EXIT_FAILED;
		}
	}
}

/* Sets up what both processes share, and the signals that the parent waits for. */
static bool prepare(struct parent *parent)
{
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	page_store_init(&parent->page_store);
	parent->signals = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
	parent->startup = mmap(NULL, sizeof(*parent->startup), PROT_READ | PROT_WRITE,
	                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return parent->signals >= 0 && parent->startup != MAP_FAILED;
}

int supervise_run(const struct options *options, int announce)
{
	struct parent parent = {.options = options, .announce = announce};
	struct failure failure;
	if (!prepare(&parent)) {
		report(&parent, strerror(errno));
		return EXIT_FAILED;
	}
	if (!state_open(&parent.state, options->state, &failure)) {
		report(&parent, failure.text);
		return strcmp(failure.code, "locked") ? EXIT_FAILED : EXIT_LOCKED;
	}
	if ((!options->foreground && !move_to_background(&parent.state, &failure)) ||
	    !state_write_pid(&parent.state, getpid(), &failure)) {
		report(&parent, failure.text);
		return EXIT_FAILED;
	}
	be_parent(&parent);
	int code = keep_alive(&parent);
	page_store_close(&parent.page_store);
	state_remove_pid(&parent.state);
	return code;
}
