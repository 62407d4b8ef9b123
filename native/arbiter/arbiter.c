#include "arbiter.h"

#include "cleanup.h"
#include "connections.h"
#include "context_sizes.h"
#include "control.h"
#include "grants.h"
#include "log.h"
#include "mapping.h"
#include "measure.h"
#include "options.h"
#include "rotation.h"
#include "residence.h"
#include "tenants.h"
#include "unjoined.h"

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

/* Both threads show that they run: this one here, the other when it has looked. */
static void on_asked(struct watch *watch, uint32_t events)
{
	(void)events;
	struct arbiter *arbiter = CONTAINER(watch, struct arbiter, asked);
	uint64_t times;
	ssize_t ignored = read(watch->fd, &times, sizeof(times));
	(void)ignored;
	credit_wake(&arbiter->credit);
	atomic_store(&arbiter->supervision->answered, atomic_load(&arbiter->supervision->asked));
}

static void on_linger_over(struct timer *timer)
{
	struct arbiter *arbiter = CONTAINER(timer, struct arbiter, linger);
	log_event("ending: no grants for %llu s", (unsigned long long)(arbiter->linger_ns / SECOND_NS));
	loop_stop(&arbiter->loop);
}

static bool open_loop(struct arbiter *arbiter, struct failure *failure)
{
	int error = loop_open(&arbiter->loop);
	if (error)
		return failure_set(failure, "loop", "cannot make an event loop: %s", strerror(-error));
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	int fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd < 0 || loop_watch(&arbiter->loop, &arbiter->signals, fd, EPOLLIN))
		return failure_set(failure, "loop", "cannot watch signals: %s", strerror(errno));
	return true;
}

/* A file too large or a closed pipe is an error to handle, not a reason to die. Each process and grant
 * needs descriptors, so the limit is raised to the maximum. */
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

static void on_snapshot(struct observer *observer, unsigned gpu)
{
	struct arbiter *arbiter = CONTAINER(observer, struct arbiter, observer);
	cleanup_on_snapshot(arbiter, gpu);
	unjoined_on_snapshot(arbiter, gpu);
	residence_on_snapshot(arbiter, gpu);
}

static bool is_used(void *context, const struct gpu *gpu)
{
	return grants_use_gpu(context, gpu);
}

static uint64_t on_scan(struct observer *observer, const struct nvml_scan *scan)
{
	struct arbiter *arbiter = CONTAINER(observer, struct arbiter, observer);
	uint64_t fresh = nvml_merge(&arbiter->nvml, scan, is_used, arbiter);
	if (fresh)
		context_sizes_read(arbiter->state, &arbiter->nvml);
	credit_set_gpus(&arbiter->credit, arbiter->nvml.gpu_count);
	return fresh;
}

static bool start(struct arbiter *arbiter, const struct options *options, struct failure *failure)
{
	int error = mapping_catch_sigbus();
	if (error)
		return failure_set(failure, "signals", "SIGBUS cannot be caught: %s", strerror(-error));
	if (!open_loop(arbiter, failure) || !nvml_open(&arbiter->nvml, options->nvml, failure))
		return false;
	error = observer_start(&arbiter->observer, &arbiter->loop, &arbiter->nvml, on_snapshot,
	                       on_scan);
	if (error)
		return failure_set(failure, "memory", "cannot start the thread that asks NVML: %s",
		                   strerror(-error));
	error = credit_start(&arbiter->credit, arbiter->nvml.gpu_count, &arbiter->supervision->looks);
	if (error)
		return failure_set(failure, "memory", "cannot start the credit thread: %s",
		                   strerror(-error));
	state_clean(arbiter->state);
	context_sizes_read(arbiter->state, &arbiter->nvml);
	return grants_recover(arbiter, failure) && control_listen(arbiter, failure);
}

static void announce_ready(struct supervision *supervision, int announce)
{
	if (atomic_exchange(&supervision->ready, 1))
		return;
	ssize_t ignored = write(announce, "ready\n", 6);
	(void)ignored;
	if (announce > STDERR_FILENO)
		close(announce);
}

/* From now on no process is gated. */
static void open_gates(struct arbiter *arbiter)
{
	credit_stop(&arbiter->credit);
	private_directory_open_gates(&arbiter->state->pages);
}

/* False: NVML is silent, and its thread still runs. */
static bool shut_down(struct arbiter *arbiter)
{
	open_gates(arbiter);
	connections_close_all(arbiter);
	control_close(arbiter);
	grants_close_all(arbiter);
	credit_free(&arbiter->credit);
	loop_unwatch(&arbiter->loop, &arbiter->signals);
	users_free(&arbiter->users);
	loop_unwatch(&arbiter->loop, &arbiter->asked);
	if (!observer_stop(&arbiter->observer))
		return false;
	nvml_close(&arbiter->nvml);
	loop_close(&arbiter->loop);
	return true;
}

int arbiter_run(const struct options *options, struct state *state, struct supervision *supervision,
                const struct mover_processes *movers, int asked, int announce)
{
	struct failure failure;
	struct arbiter arbiter = {
		.state = state,
		.supervision = supervision,
		.linger_ns = options->linger_seconds * SECOND_NS,
		.foreground = options->foreground,
		.pool_admits = options->pool_admits,
		.ends_unjoined = options->ends_unjoined,
		.overcommit_percent = options->overcommit_percent,
		.mps = options->mps,
		.linger.fire = on_linger_over,
		.cleanup.fire = cleanup_on_timer,
		.measure.fire = measure_on_timer,
		.parking.fire = rotation_on_timer,
		.confirm.fire = unjoined_on_timer,
		.resume.fire = connections_on_resume,
		.ring.fire = tenants_on_ring_timer,
		.tenant_ready = tenants_on_ready,
		.control.fd = -1,
		.signals = {.fd = -1, .ready = on_signal},
		.asked = {.fd = -1, .ready = on_asked},
	};
	prepare_process();
	movers_open(&arbiter.movers, movers);
	/* An arbiter that replaces another one starts all the same: programs are waiting for it. */
	bool has_limits = users_read_first(&arbiter.users, options->users, &failure);
	if ((!has_limits && !atomic_load(&supervision->ready)) || !start(&arbiter, options, &failure)) {
		open_gates(&arbiter);
		snprintf(supervision->error, sizeof(supervision->error), "%s", failure.text);
		return EXIT_FAILED;
	}
	log_event("ready: pid %d, %u GPUs, %u grants, state in %s", (int)getpid(),
	          arbiter.nvml.gpu_count, arbiter.grant_count, state->path);
	grants_linger(&arbiter);
	announce_ready(supervision, announce);
	int error = loop_watch(&arbiter.loop, &arbiter.asked, asked, EPOLLIN);
	if (!error) {
		atomic_store(&supervision->serving, true);
		error = loop_run(&arbiter.loop);
		atomic_store(&supervision->serving, false);
	}
	if (error)
		log_event("the event loop failed: %s", strerror(-error));
	int code = error ? EXIT_FAILED : 0;
	if (!shut_down(&arbiter))
		_exit(code); /* the thread uses what lies here */
	return code;
}
