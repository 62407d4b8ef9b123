#include "arbiter.h"

#include "connections.h"
#include "control.h"
#include "ending.h"
#include "grants.h"
#include "keeper.h"
#include "log.h"
#include "measure.h"
#include "options.h"
#include "pages.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

static void on_signal(struct watch *watch, uint32_t events)
{
	(void)events;
	struct arbiter *arbiter = CONTAINER(watch, struct arbiter, signals);
	struct signalfd_siginfo info;
	if (read(watch->fd, &info, sizeof(info)) != sizeof(info))
		return;
	log_event("ending: signal %u", info.ssi_signo);
	loop_stop(&arbiter->loop);
}

static void on_linger_over(struct timer *timer)
{
	struct arbiter *arbiter = CONTAINER(timer, struct arbiter, linger);
	log_event("ending: no grant for %llu s", (unsigned long long)(arbiter->linger_ns / SECOND_NS));
	loop_stop(&arbiter->loop);
}

static bool open_loop(struct arbiter *arbiter, struct failure *failure)
{
	int error = loop_open(&arbiter->loop);
	if (error)
		return failure_set(failure, "loop", "no event loop: %s", strerror(-error));
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	int fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd < 0 || loop_watch(&arbiter->loop, &arbiter->signals, fd, EPOLLIN))
		return failure_set(failure, "loop", "no signals: %s", strerror(errno));
	return true;
}

/* A file too large or a reader gone is an error to handle, not a death. Each process and grant
 * needs descriptors: take all there may be. */
static void prepare_process(void)
{
	struct rlimit files;
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	umask(022);
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
}

static bool begin(struct arbiter *arbiter, const struct options *options, struct failure *failure)
{
	int error = pages_guard();
	if (error)
		return failure_set(failure, "signals", "SIGBUS cannot be caught: %s", strerror(-error));
	if (!pair_try(failure) || !open_loop(arbiter, failure) ||
	    !nvml_open(&arbiter->nvml, options->nvml, failure))
		return false;
	error = credit_start(&arbiter->credit, arbiter->nvml.gpu_count);
	if (error)
		return failure_set(failure, "memory", "no thread for credit: %s", strerror(-error));
	state_clean(arbiter->state);
	if (!grants_recover(arbiter, failure) || !control_listen(arbiter, failure))
		return false;
	keeper_drop_unclaimed(arbiter->keeper);
	return true;
}

static void announce_ready(struct birth *birth, int announce)
{
	if (atomic_exchange(&birth->ready, 1))
		return;
	ssize_t ignored = write(announce, "ready\n", 6);
	(void)ignored;
	if (announce > STDERR_FILENO)
		close(announce);
}

/* From now on nobody is gated. */
static void open_gates(struct arbiter *arbiter)
{
	credit_stop(&arbiter->credit);
	keeper_open_gates(arbiter->keeper);
}

static void end(struct arbiter *arbiter)
{
	open_gates(arbiter);
	connections_close_all(arbiter);
	control_close(arbiter);
	grants_close_all(arbiter);
	credit_free(&arbiter->credit);
	loop_unwatch(&arbiter->loop, &arbiter->signals);
	measure_close();
	nvml_close(&arbiter->nvml);
	loop_close(&arbiter->loop);
}

int arbiter_run(const struct options *options, struct state *state, struct birth *birth,
                struct keeper *keeper, int announce)
{
	struct failure failure;
	struct arbiter arbiter = {
		.state = state,
		.keeper = keeper,
		.linger_ns = options->linger_seconds * SECOND_NS,
		.linger.fire = on_linger_over,
		.ending.fire = ending_on_timer,
		.measure.fire = measure_on_timer,
		.resume.fire = connections_on_resume,
		.control.fd = -1,
		.signals = {.fd = -1, .ready = on_signal},
	};
	prepare_process();
	if (!begin(&arbiter, options, &failure)) {
		open_gates(&arbiter);
		snprintf(birth->error, sizeof(birth->error), "%s", failure.text);
		return EXIT_FAILED;
	}
	log_event("ready: pid %d, %u GPUs, %u grants, state in %s", (int)getpid(),
	          arbiter.nvml.gpu_count, arbiter.grant_count, state->path);
	grants_linger(&arbiter);
	announce_ready(birth, announce);
	int error = loop_run(&arbiter.loop);
	if (error)
		log_event("the event loop failed: %s", strerror(-error));
	end(&arbiter);
	return error ? EXIT_FAILED : 0;
}
