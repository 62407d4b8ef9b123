#include "guard.h"

#include "identity.h"
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The arbiter ends by itself when its parent dies, unless it hangs. */
#define END_MS 1000

/* Newer than the C library's headers may be. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

/* False: it did not end in that time. */
static bool wait_for_end(int pidfd, int timeout_ms)
{
	struct pollfd poller = {.fd = pidfd, .events = POLLIN};
	int ready;
	do
		ready = poll(&poller, 1, timeout_ms);
	while (ready < 0 && errno == EINTR);
	return ready != 0;
}

static void wait_for_parent(pid_t parent)
{
	int pidfd = (int)syscall(SYS_pidfd_open, parent, 0);
	while (getppid() == parent) {
		if (pidfd >= 0)
			wait_for_end(pidfd, -1);
		else /* out of descriptors */
			nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	}
	if (pidfd >= 0)
		close(pidfd);
}

static void end_arbiter(struct supervision *supervision)
{
	int pidfd = identity_reopen(atomic_load(&supervision->arbiter_pid),
	                            atomic_load(&supervision->arbiter_start_time));
	if (pidfd < 0)
		return;
	if (!wait_for_end(pidfd, END_MS)) {
		log_event("the arbiter (pid %d) did not end with its parent: killed",
		          atomic_load(&supervision->arbiter_pid));
		syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
		wait_for_end(pidfd, -1);
	}
	close(pidfd);
}

void guard_wait(pid_t parent, const struct state *state, struct supervision *supervision)
{
	prctl(PR_SET_NAME, "aliquot-guard");
	wait_for_parent(parent);
	unsigned opened = private_directory_open_gates(&state->pages);
	log_event("the arbiter's parent (pid %d) died: opened the gates of %u processes", (int)parent,
	          opened);
	end_arbiter(supervision);
	private_directory_open_gates(&state->pages);
}
