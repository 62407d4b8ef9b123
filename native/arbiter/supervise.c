#include "supervise.h"

#include "arbiter.h"
#include "guard.h"
#include "held_memory.h"
#include "identity.h"
#include "log.h"
#include "mapping.h"
#include "mover_processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEATHS_MOST 10
#define DEATHS_WITHIN_NS (10 * SECOND_NS)
#define END_TIMEOUT_NS (5 * SECOND_NS)
/* The parent looks this often, and kills an arbiter after that many looks without progress. */
#define LOOK_NS (MOVER_LOOK_SECONDS * SECOND_NS) /* movers are looked at with the arbiter */
#define MISSED_MOST 2

struct parent {
	const struct options *options;
	int announce;
	struct state state;
	struct supervision *supervision;
	struct mover_processes movers;
	int signals;        /* a signalfd */
	int asked;          /* an eventfd: the parent asks for progress */
	uint64_t looks;     /* of the credit thread, when it last made progress */
	unsigned missed;    /* looks without progress */
	pid_t guard;        /* -1: none */
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

/* Takes the place of the parent: the first one, or the guard of a dead one. */
static bool be_parent(struct parent *parent, struct failure *failure)
{
	prctl(PR_SET_NAME, "aliquot-parent");
	return state_write_pid(&parent->state, getpid(), failure);
}

static void be_child(struct parent *parent)
{
	uint64_t start_time = 0;
	prctl(PR_SET_NAME, "aliquot-arbiter");
	write_oom_score(parent->oom_score);
	close(parent->signals);
	identity_start_time(getpid(), &start_time);
	atomic_store(&parent->supervision->arbiter_start_time, start_time);
	atomic_store(&parent->supervision->arbiter_pid, (int)getpid());
}

/* The child's pid, or -1. */
static pid_t start_child(struct parent *parent)
{
	parent->supervision->error[0] = 0;
	atomic_store(&parent->supervision->serving, false);
	parent->missed = 0;
	pid_t self = getpid(), child = fork();
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != self)
		_exit(0);
	be_child(parent);
	exit(arbiter_run(parent->options, &parent->state, parent->supervision, &parent->movers,
	                 parent->asked, parent->announce));
}

static int lead(struct parent *parent);

static void start_guard(struct parent *parent)
{
	pid_t self = getpid(), guard = fork();
	if (guard < 0)
		log_event("the guard cannot be started: %s", strerror(errno));
	parent->guard = guard;
	if (guard) {
		atomic_store(&parent->supervision->guard_pid, guard > 0 ? (int)guard : 0);
		return;
	}
	guard_wait(self, &parent->state, parent->supervision);
	if (parent->options->foreground) {
		held_memory_log_lost(&parent->movers);
		_exit(EXIT_FAILED);
	}
	exit(lead(parent));
}

static void end_guard(struct parent *parent)
{
	if (parent->guard <= 0)
		return;
	kill(parent->guard, SIGKILL);
	waitpid(parent->guard, NULL, 0);
}

/* Waits for the next signal, and starts movers meanwhile; 0: none came until then. */
static int next_signal(struct parent *parent, uint64_t until)
{
	struct signalfd_siginfo info;
	for (;;) {
		struct pollfd pollers[1 + ALIQUOT_MOVERS] = {{.fd = parent->signals, .events = POLLIN}};
		unsigned movers = mover_processes_watch(&parent->movers, pollers + 1);
		uint64_t now = loop_now(), remaining = until > now ? until - now : 0;
		struct timespec timeout = {.tv_sec = (time_t)(remaining / SECOND_NS),
		                           .tv_nsec = (long)(remaining % SECOND_NS)};
		if (ppoll(pollers, 1 + movers, &timeout, NULL) == 0)
			return 0;
		mover_processes_start(&parent->movers, pollers + 1, movers);
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

/* Looks whether both threads of the arbiter answered since the last look, and asks them again. False: they
 * have not for too long. */
static bool makes_progress(struct parent *parent)
{
	struct supervision *supervision = parent->supervision;
	uint64_t looks = atomic_load(&supervision->looks), one = 1;
	if (!atomic_load(&supervision->serving))
		return true;
	bool answered = atomic_load(&supervision->answered) == atomic_load(&supervision->asked) &&
	                looks != parent->looks;
	if (!answered && ++parent->missed > MISSED_MOST)
		return false;
	if (answered) {
		parent->missed = 0;
		parent->looks = looks;
		atomic_fetch_add(&supervision->asked, 1);
	}
	ssize_t ignored = write(parent->asked, &one, sizeof(one));
	(void)ignored;
	return true;
}

/* Gates are opened at once: a process inside the driver may take long to die, and a busy disk may take long
 * to write the log. */
static void kill_child(struct parent *parent, pid_t child, const char *why)
{
	kill(child, SIGKILL);
	private_directory_open_gates(&parent->state.pages);
	log_event("the arbiter (pid %d) %s: killed and restarted", (int)child, why);
}

/* Waits for the child to end, or for a signal to end it. The child's status; -1: it was ended. */
static int wait_for_child(struct parent *parent, pid_t child)
{
	uint64_t look_at = loop_now() + LOOK_NS;
	for (;;) {
		int status, number = next_signal(parent, look_at);
		if (number == SIGTERM || number == SIGINT) {
			end_child(parent, child);
			return -1;
		}
		if (!number) {
			look_at = loop_now() + LOOK_NS;
			if (!makes_progress(parent))
				kill_child(parent, child, "makes no progress");
			mover_processes_look(&parent->movers);
		}
		mover_processes_reap(&parent->movers);
		if (parent->guard <= 0 || waitpid(parent->guard, NULL, WNOHANG) == parent->guard)
			start_guard(parent);
		if (waitpid(child, &status, WNOHANG | WUNTRACED) != child)
			continue;
		if (!WIFSTOPPED(status))
			return status;
		kill_child(parent, child, "was stopped");
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
	struct supervision *supervision = parent->supervision;
	uint64_t deaths[DEATHS_MOST] = {0};
	for (unsigned count = 0;; count++) {
		pid_t child = start_child(parent);
		if (child < 0) {
			report(parent, "the arbiter cannot be started: fork failed");
			return EXIT_FAILED;
		}
		int status = wait_for_child(parent, child);
		unsigned opened = private_directory_open_gates(&parent->state.pages);
		if (status == -1 || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
			return 0;
		if (!atomic_load(&supervision->ready)) {
			report(parent,
			       *supervision->error ? supervision->error : "the arbiter died while starting");
			return EXIT_FAILED;
		}
		log_death(child, status, supervision->error, opened);
		deaths[count % DEATHS_MOST] = loop_now();
		uint64_t oldest = deaths[(count + 1) % DEATHS_MOST];
		if (oldest && loop_now() - oldest < DEATHS_WITHIN_NS) {
			log_event("the arbiter died %d times within 10 seconds: giving up", DEATHS_MOST);
			return EXIT_FAILED;
		}
	}
}

/* The life of a parent, with a guard: until the arbiter ends for good. Returns the exit code. */
static int lead(struct parent *parent)
{
	struct failure failure;
	if (!be_parent(parent, &failure)) {
		report(parent, failure.text);
		return EXIT_FAILED;
	}
	mover_processes_take_over(&parent->movers);
	start_guard(parent);
	int code = keep_alive(parent);
	end_guard(parent);
	mover_processes_end(&parent->movers);
	held_memory_log_lost(&parent->movers);
	private_directory_close(&parent->state.pages);
	private_directory_close(&parent->state.records);
	state_remove_pid(&parent->state);
	return code;
}

/* Sets up what all three processes share, and the signals that the parent waits for. */
static bool prepare(struct parent *parent)
{
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	mapping_catch_sigbus();
	parent->signals = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
	parent->asked = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	parent->supervision = mmap(NULL, sizeof(*parent->supervision), PROT_READ | PROT_WRITE,
	                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return parent->signals >= 0 && parent->asked >= 0 && parent->supervision != MAP_FAILED;
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
	if (!options->foreground && !move_to_background(&parent.state, &failure)) {
		report(&parent, failure.text);
		return EXIT_FAILED;
	}
	mover_processes_prepare(&parent.movers, options, parent.supervision);
	read_oom_score(parent.oom_score);
	write_oom_score("-1000");
	return lead(&parent);
}
