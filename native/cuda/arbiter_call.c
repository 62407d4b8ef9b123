#define _GNU_SOURCE
#include "arbiter_call.h"

#include "aliquot/protocol.h"
#include "cancel.h"
#include "forward.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* A program without an answer gets no GPU, so it waits longer than an arbiter on a loaded machine takes,
 * and longer than its parent takes to end one that hangs. */
#define ANSWER_MS 20000
/* An arbiter that died is started again by its parent: wait that long for it. */
#define RESTART_MS 500
#define RETRY_MS 5
/* The descriptors that come with WELCOME. */
enum { LIMITS, USAGE, CREDIT, WORK, PAGES };

/* A long path does not fit into a socket's address; /proc/self/fd/N does. */
static int connect_by_folder(int socket_fd, const char *directory)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int folder = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		return -1;
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/socket", folder);
	int result = connect(socket_fd, (struct sockaddr *)&address, sizeof(address));
	int why = errno;
	close(folder);
	errno = why;
	return result;
}

static int64_t now_ms(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Calls on the socket wait until then, and no longer. False: the time is over, and errno is EAGAIN. */
static bool wait_until(int fd, int64_t deadline_ms)
{
	int64_t left = deadline_ms - now_ms();
	struct timeval patience = {.tv_sec = left / 1000, .tv_usec = left % 1000 * 1000};
	errno = EAGAIN;
	return left > 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0 &&
	       setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0;
}

/* With a patience of 0 it waits for nothing, not even for the arbiter to accept the connection. */
static int connect_to(const char *directory, int patience_ms)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (patience_ms ? 0 : SOCK_NONBLOCK), 0);
	if (fd < 0)
		return -1;
	if (patience_ms && !wait_until(fd, now_ms() + patience_ms)) {
		close(fd);
		return -1;
	}
	if (connect_by_folder(fd, directory) == 0)
		return fd;
	int why = errno;
	close(fd);
	errno = why;
	return -1;
}

/* Send one message and receive one; *count descriptors come with it, at most PAGES. A program's signals
 * do not prolong the wait. */
static bool exchange(int fd, int64_t deadline_ms, struct aliquot_message out,
                     struct aliquot_message *in, int fds[PAGES], int *count)
{
	*count = 0;
	if (send(fd, &out, sizeof(out), MSG_NOSIGNAL) != (ssize_t)sizeof(out))
		return false;
	char bytes[sizeof(struct aliquot_message)];
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(PAGES * sizeof(int))];
	} control;
	struct iovec part = {.iov_base = bytes, .iov_len = sizeof(bytes)};
	struct msghdr message = {.msg_iov = &part,
	                         .msg_iovlen = 1,
	                         .msg_control = &control,
	                         .msg_controllen = sizeof(control)};
	ssize_t size;
	do
		size = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	while (size < 0 && errno == EINTR && wait_until(fd, deadline_ms));
	struct cmsghdr *header = size >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
	if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
		*count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(header), (size_t)*count * sizeof(int));
	}
	if (size == 0)
		errno = ECONNRESET; /* closed without an answer */
	else if (size > 0 && aliquot_message_read(bytes, (size_t)size, in) != 0)
		errno = EPROTO;
	else
		return size > 0;
	return false;
}

static void *map(int fd, size_t size, int protection)
{
	if (lseek(fd, 0, SEEK_END) < (off_t)size)
		return NULL;
	void *memory = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

static void unmap(const void *memory, size_t size)
{
	if (memory)
		munmap((void *)memory, size);
}

static void unmap_pages(const struct arbiter_welcome *pages, size_t work_size)
{
	unmap(pages->limits, sizeof(*pages->limits));
	unmap(pages->usage, sizeof(*pages->usage));
	unmap(pages->credit, ALIQUOT_CREDIT_SIZE);
	unmap(pages->work, work_size);
}

static const char *check_pages(const struct arbiter_welcome *pages, size_t work_size)
{
	if (!pages->limits || !pages->usage || !pages->credit || !pages->work)
		return "its pages cannot be mapped";
	const char *wrong = aliquot_usage_check(pages->usage, sizeof(*pages->usage));
	if (!wrong)
		wrong = aliquot_credit_check(pages->credit, ALIQUOT_CREDIT_SIZE);
	if (!wrong)
		wrong = aliquot_work_check(pages->work, pages->limits->slice_count, work_size);
	return wrong;
}

/* Returns what is wrong with the pages; NULL: nothing, and *out has them. */
static const char *map_pages(const int fds[PAGES], uint64_t slot, struct arbiter_welcome *out)
{
	*out = (struct arbiter_welcome){.slot = (uint32_t)slot};
	out->limits = map(fds[LIMITS], sizeof(*out->limits), PROT_READ);
	const char *wrong = "its pages cannot be mapped";
	size_t work_size = 0;
	if (slot >= ALIQUOT_MAX_PROCESSES)
		wrong = "it gave an invalid slot";
	else if (out->limits)
		wrong = aliquot_limits_check(out->limits, sizeof(*out->limits));
	if (!wrong) {
		work_size = out->limits->slice_count * (size_t)ALIQUOT_WORK_SIZE;
		out->usage = map(fds[USAGE], sizeof(*out->usage), PROT_READ | PROT_WRITE);
		out->credit = map(fds[CREDIT], ALIQUOT_CREDIT_SIZE, PROT_READ);
		out->work = map(fds[WORK], work_size, PROT_READ | PROT_WRITE);
		wrong = check_pages(out, work_size);
	}
	if (wrong)
		unmap_pages(out, work_size);
	return wrong;
}

static void close_all(const int *fds, int count)
{
	for (int i = 0; i < count; i++)
		close(fds[i]);
}

/* One question and its answer. A connection that is refused or cut off is tried again: the arbiter
 * may be starting. */
static bool ask_patiently(const char *directory, struct aliquot_message question,
                          struct aliquot_message *answer, int fds[PAGES], int *count)
{
	struct timespec moment = {.tv_nsec = RETRY_MS * 1000 * 1000};
	int64_t deadline = now_ms() + ANSWER_MS, left;
	for (unsigned tries = 0; tries < RESTART_MS / RETRY_MS && (left = deadline - now_ms()) > 0;
	     tries++) {
		int fd = connect_to(directory, (int)left);
		if (fd < 0 && errno != ECONNREFUSED && errno != EINTR)
			return false;
		bool answered = fd >= 0 && exchange(fd, deadline, question, answer, fds, count);
		int why = errno;
		if (fd >= 0)
			close(fd);
		if (answered)
			return true;
		for (int i = 0; fd >= 0 && i < *count; i++)
			close(fds[i]);
		errno = why;
		if (why != ECONNREFUSED && why != ECONNRESET && why != EPIPE && why != EINTR)
			return false;
		nanosleep(&moment, NULL);
	}
	return false;
}

static void report_no_answer(const char *directory)
{
	const char *why = strerror(errno);
	if (access(directory, F_OK) != 0)
		forward_say("the grant %s has ended: no GPU is given", directory);
	else
		forward_say("no arbiter answers for the grant %s (%s): no GPU; ask: aliquot doctor",
		            directory, why);
}

enum arbiter_hello arbiter_hello(struct arbiter_welcome *out)
{
	char directory[PATH_MAX];
	uint64_t created;
	if (!forward_grant(directory, &created)) {
		forward_say("this program has the slice's driver and no grant: start it with aliquot run");
		return ARBITER_REFUSES;
	}
	struct aliquot_message answer;
	int fds[PAGES], count = 0;
	if (!ask_patiently(directory, aliquot_message_make(ALIQUOT_HELLO, (uint64_t)getpid()), &answer,
	                   fds, &count)) {
		report_no_answer(directory);
		return ARBITER_REFUSES;
	}
	const char *wrong = NULL;
	bool parked = answer.kind == ALIQUOT_REFUSED && answer.value == ALIQUOT_REFUSED_PARKED;
	if (answer.kind == ALIQUOT_REFUSED)
		wrong = answer.text[0] ? answer.text : "it refused";
	else if (answer.kind != ALIQUOT_WELCOME || count != PAGES)
		wrong = "it gave an invalid answer";
	else
		wrong = map_pages(fds, answer.value, out);
	if (!wrong && created && out->limits->created_ns != created)
		wrong = "the one this program was started in has ended, and this one has its name";
	close_all(fds, count);
	if (parked)
		return ARBITER_PARKED;
	if (wrong)
		forward_say("the grant %s gives no GPU: %s; ask: aliquot doctor", directory, wrong);
	return wrong ? ARBITER_REFUSES : ARBITER_WELCOMES;
}

/* One question, without a second try. The caller closes the descriptors that come with the answer. */
static bool ask_once(struct aliquot_message question, int patience_ms,
                     struct aliquot_message *answer, int fds[PAGES], int *count)
{
	char directory[PATH_MAX];
	uint64_t created;
	int64_t deadline = now_ms() + patience_ms;
	*count = 0;
	int fd = forward_grant(directory, &created) ? connect_to(directory, patience_ms) : -1;
	if (fd < 0)
		return false;
	bool answered = exchange(fd, deadline, question, answer, fds, count);
	close(fd);
	return answered;
}

bool arbiter_measure(int patience_ms, uint64_t held_for_context)
{
	struct aliquot_message answer;
	int fds[PAGES], count, cancel = cancel_disable();
	bool answered = ask_once(aliquot_message_make(ALIQUOT_MEASURE, held_for_context), patience_ms,
	                         &answer, fds, &count);
	close_all(fds, count);
	cancel_restore(cancel);
	return answered && answer.kind == ALIQUOT_MEASURED;
}

int arbiter_mover(int patience_ms)
{
	struct aliquot_message answer;
	int fds[PAGES], count, cancel = cancel_disable();
	bool answered = ask_once(aliquot_message_make(ALIQUOT_MOVER, 0), patience_ms, &answer, fds,
	                         &count);
	bool is_there = answered && answer.kind == ALIQUOT_MOVER && count == 1;
	if (!is_there)
		close_all(fds, count);
	cancel_restore(cancel);
	return is_there ? fds[0] : -1;
}

static void ring(void)
{
	char directory[PATH_MAX];
	uint64_t created;
	int fd = forward_grant(directory, &created) ? connect_to(directory, 0) : -1;
	if (fd < 0)
		return;
	struct aliquot_message message = aliquot_message_make(ALIQUOT_RING, 0);
	send(fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
	close(fd);
}

void arbiter_ring(void)
{
	int cancel = cancel_disable();
	ring();
	cancel_restore(cancel);
}
