#include "mover_processes.h"

#include "aliquot/descriptors.h"
#include "aliquot/uuid.h"
#include "identity.h"
#include "log.h"
#include "loop.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARBITER_END 0
#define MOVER_END 1
#define DEATHS_WITHIN_NS (10 * SECOND_NS)
#define HANGS_MOST 2u
#define REST_NS (10 * SECOND_NS)
#define END_MS 5000
/* Above the numbers that a mover finds its files at. */
#define LOWEST_FD 10

/* Looks without progress. */
static unsigned most_looks(void)
{
	return (aliquot_mover_patience() + MOVER_LOOK_SECONDS - 1) / MOVER_LOOK_SECONDS;
}

/* aliquot-mover lies beside this program. It is opened once, so that an update changes both or none. */
static int open_program(void)
{
	char path[PATH_MAX];
	ssize_t used = readlink("/proc/self/exe", path, sizeof(path) - 1);
	path[used > 0 ? used : 0] = 0;
	char *slash = strrchr(path, '/');
	if (!slash || (size_t)(slash - path) + sizeof("/aliquot-mover") > sizeof(path)) {
		errno = ENOENT;
		return -1;
	}
	strcpy(slash, "/aliquot-mover");
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* Half of it and a bit: one slice of half of the host fits, beside what its programs have there. */
static uint64_t default_bytes(void)
{
	uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), size = (uint64_t)sysconf(_SC_PAGESIZE);
	return pages * size / 10 * 6;
}

static bool make_arenas(struct mover_processes *movers)
{
	size_t size = ALIQUOT_MOVERS * sizeof(struct aliquot_arena);
	movers->arenas = memfd_create("aliquot-arenas", MFD_CLOEXEC);
	if (movers->arenas < 0 || ftruncate(movers->arenas, (off_t)size))
		return false;
	movers->pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, movers->arenas, 0);
	if (movers->pages == MAP_FAILED)
		return false;
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++) {
		movers->pages[i].magic = ALIQUOT_ARENA_MAGIC;
		movers->pages[i].version = ALIQUOT_ARENA_VERSION;
		movers->pages[i].size = sizeof(struct aliquot_arena);
	}
	return true;
}

static bool make_files(struct mover_processes *movers)
{
	if (!make_arenas(movers))
		return false;
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++) {
		struct mover_process *mover = &movers->all[i];
		mover->data = memfd_create("aliquot-arena", MFD_CLOEXEC);
		if (mover->data < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, mover->orders))
			return false;
	}
	return true;
}

void mover_processes_prepare(struct mover_processes *movers, const struct options *options,
                             struct supervision *supervision)
{
	memset(movers, 0, sizeof(*movers));
	movers->supervision = supervision;
	movers->cuda = options->cuda;
	movers->most_bytes = options->host_bytes ? options->host_bytes : default_bytes();
	if (!movers->cuda) {
		snprintf(movers->why_not, sizeof(movers->why_not),
		         "the arbiter was started without --cuda: it cannot move memory");
		return;
	}
	movers->program = open_program();
	if (movers->program < 0)
		snprintf(movers->why_not, sizeof(movers->why_not), "aliquot-mover cannot be opened: %s",
		         strerror(errno));
	else if (!make_files(movers))
		snprintf(movers->why_not, sizeof(movers->why_not), "no files for GPU memory: %s",
		         strerror(errno));
	movers->exist = !*movers->why_not;
	if (!movers->exist)
		log_event("%s", movers->why_not);
}

void mover_processes_take_over(struct mover_processes *movers)
{
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++) {
		struct mover_slot *slot = &movers->supervision->movers[i];
		int pid = atomic_load(&slot->pid);
		int pidfd = pid ? identity_reopen(pid, atomic_load(&slot->start_time)) : -ESRCH;
		movers->all[i].pid = 0;
		movers->all[i].death_count = 0;
		movers->all[i].hangs = 0;
		if (pidfd >= 0) {
			struct pollfd poller = {.fd = pidfd, .events = POLLIN};
			poll(&poller, 1, END_MS);
			close(pidfd);
		}
		atomic_store(&slot->pid, 0);
	}
}

/* Gives a new process its three files at the numbers that it expects. */
static void place_files(const struct mover_processes *movers, const struct mover_process *mover)
{
	const int files[] = {movers->arenas, mover->data, mover->orders[MOVER_END]};
	int high[3];
	for (unsigned i = 0; i < 3; i++)
		high[i] = fcntl(files[i], F_DUPFD_CLOEXEC, LOWEST_FD);
	for (unsigned i = 0; i < 3; i++)
		if (high[i] < 0 || dup2(high[i], ALIQUOT_MOVER_ARENAS + (int)i) < 0)
			_exit(EXIT_FAILED);
}

__attribute__((noreturn)) static void become_mover(const struct mover_processes *movers,
                                                   unsigned number)
{
	char uuid[ALIQUOT_UUID_TEXT_SIZE], index[16], bytes[32];
	sigset_t none;
	int program = fcntl(movers->program, F_DUPFD_CLOEXEC, LOWEST_FD);
	aliquot_uuid_write(movers->supervision->movers[number].uuid, false, uuid);
	snprintf(index, sizeof(index), "%u", number);
	snprintf(bytes, sizeof(bytes), "%" PRIu64, movers->most_bytes);
	place_files(movers, &movers->all[number]);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	extern char **environ;
	char *const arguments[] = {"aliquot-mover", (char *)movers->cuda, uuid, index, bytes, NULL};
	fexecve(program, arguments, environ);
	_exit(EXIT_FAILED);
}

/* Closes the connections that wait for a mover which does not come. */
static void drop_orders(const struct mover_process *mover)
{
	struct aliquot_order order;
	int fd;
	bool wrong;
	while (aliquot_receive_descriptor(mover->orders[MOVER_END], &order, sizeof(order), &fd, &wrong,
	                                  MSG_DONTWAIT) > 0)
		if (fd >= 0)
			close(fd);
}

/* None is started for a while. */
static void rest(struct mover_processes *movers, unsigned number, enum mover_rest because)
{
	struct mover_process *mover = &movers->all[number];
	struct mover_slot *slot = &movers->supervision->movers[number];
	mover->death_count = 0;
	atomic_store(&slot->rests_because, because);
	atomic_store(&slot->rests_until, loop_now() + REST_NS);
	drop_orders(mover);
}

static void start(struct mover_processes *movers, unsigned number)
{
	struct mover_process *mover = &movers->all[number];
	struct mover_slot *slot = &movers->supervision->movers[number];
	uint64_t start_time = 0;
	pid_t self = getpid(), pid = fork();
	if (pid < 0) {
		log_event("mover %u cannot be started: %s: not tried for 10 seconds", number,
		          strerror(errno));
		rest(movers, number, MOVER_NOT_STARTED);
		return;
	}
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != self)
			_exit(0);
		become_mover(movers, number);
	}
	mover->pid = pid;
	mover->beats = atomic_load(&movers->pages[number].beats);
	atomic_store(&slot->silent_looks, 0);
	identity_start_time(pid, &start_time);
	atomic_store(&slot->start_time, start_time);
	atomic_store(&slot->pid, (int)pid);
	atomic_fetch_add(&slot->starts, 1);
}

static bool rests(const struct mover_processes *movers, unsigned number)
{
	return loop_now() < atomic_load(&movers->supervision->movers[number].rests_until);
}

unsigned mover_processes_watch(struct mover_processes *movers,
                               struct pollfd pollers[static ALIQUOT_MOVERS])
{
	unsigned count = 0;
	for (unsigned i = 0; movers->exist && i < ALIQUOT_MOVERS; i++) {
		const struct mover_process *mover = &movers->all[i];
		if (!mover->pid && !rests(movers, i))
			pollers[count++] = (struct pollfd){.fd = mover->orders[MOVER_END], .events = POLLIN};
	}
	return count;
}

void mover_processes_start(struct mover_processes *movers, const struct pollfd *pollers,
                           unsigned count)
{
	for (unsigned ready = 0; ready < count; ready++)
		for (unsigned i = 0; pollers[ready].revents && i < ALIQUOT_MOVERS; i++)
			if (movers->all[i].orders[MOVER_END] == pollers[ready].fd && !movers->all[i].pid)
				start(movers, i);
}

/* Whether it has died too often. */
static bool count_death(struct mover_process *mover)
{
	uint64_t now = loop_now();
	mover->deaths[mover->death_count++ % MOVER_DEATHS_MOST] = now;
	uint64_t oldest = mover->deaths[mover->death_count % MOVER_DEATHS_MOST];
	return mover->death_count >= MOVER_DEATHS_MOST && now - oldest <= DEATHS_WITHIN_NS;
}

/* Whether it has hung too often. */
static bool count_hang(struct mover_processes *movers, unsigned number)
{
	struct mover_process *mover = &movers->all[number];
	const struct aliquot_arena *page = &movers->pages[number];
	uint64_t copied = atomic_load(&page->out_bytes) + atomic_load(&page->in_bytes);
	if (copied != mover->copied_at_hang)
		mover->hangs = 0;
	mover->copied_at_hang = copied;
	atomic_fetch_add(&movers->supervision->movers[number].hangs, 1);
	return ++mover->hangs % HANGS_MOST == 0;
}

static void on_death(struct mover_processes *movers, unsigned number, int status)
{
	struct mover_process *mover = &movers->all[number];
	struct mover_slot *slot = &movers->supervision->movers[number];
	struct aliquot_arena *page = &movers->pages[number];
	int pid = (int)mover->pid;
	bool hung = atomic_load(&slot->silent_looks) > most_looks();
	mover->pid = 0;
	atomic_store(&slot->pid, 0);
	atomic_store(&slot->silent_looks, 0);
	atomic_store(&page->lacking_bytes, 0); /* nobody waits for it any more */
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return;
	hung |= WIFEXITED(status) && WEXITSTATUS(status) == ALIQUOT_MOVER_HUNG;
	if (WIFSIGNALED(status))
		log_event("mover %u (pid %d) died of signal %d", number, pid, WTERMSIG(status));
	else
		log_event("mover %u (pid %d) ended with code %d", number, pid, WEXITSTATUS(status));
	if (hung && count_hang(movers, number)) {
		log_event("mover %u hung %u times and copied nothing: not started for 10 seconds", number,
		          mover->hangs);
		rest(movers, number, MOVER_HUNG);
	} else if (!hung && count_death(mover)) {
		log_event("mover %u died %d times within 10 seconds: not started for 10 seconds", number,
		          MOVER_DEATHS_MOST);
		rest(movers, number, MOVER_DIED);
	} else if (atomic_load(&page->wanted_bytes) || atomic_load(&page->grown_bytes)) {
		start(movers, number);
	}
}

void mover_processes_reap(struct mover_processes *movers)
{
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++) {
		int status;
		pid_t pid = movers->all[i].pid;
		if (pid && waitpid(pid, &status, WNOHANG) == pid)
			on_death(movers, i, status);
	}
}

static void look(struct mover_processes *movers, unsigned number)
{
	struct mover_process *mover = &movers->all[number];
	struct mover_slot *slot = &movers->supervision->movers[number];
	uint64_t beats = atomic_load(&movers->pages[number].beats);
	if (beats != mover->beats) {
		mover->beats = beats;
		atomic_store(&slot->silent_looks, 0);
		return;
	}
	unsigned looks = atomic_fetch_add(&slot->silent_looks, 1) + 1;
	if (looks <= most_looks())
		return;
	kill(mover->pid, SIGKILL);
	if (looks == most_looks() + 1)
		log_event("mover %u (pid %d) has made no progress for %u s: killed", number,
		          (int)mover->pid, (looks - 1) * MOVER_LOOK_SECONDS);
	else if (looks > 2 * most_looks())
		/* It is inside the kernel, and only one at a time may have the arena. */
		rest(movers, number, MOVER_HUNG);
}

void mover_processes_look(struct mover_processes *movers)
{
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++)
		if (movers->all[i].pid)
			look(movers, i);
}

void mover_processes_end(struct mover_processes *movers)
{
	for (unsigned i = 0; i < ALIQUOT_MOVERS; i++) {
		pid_t pid = movers->all[i].pid;
		if (!pid)
			continue;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		movers->all[i].pid = 0;
	}
}
