#include "tenants.h"

#include "connections.h"
#include "grants.h"
#include "log.h"
#include "measure.h"
#include "processes.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A talker gets this many answers before the others have their turn. */
#define MESSAGES_PER_TURN 8
#define FDS_MOST 4

static bool send_message(int fd, const struct aliquot_message *message, const int *fds,
                         size_t count)
{
	char control[CMSG_SPACE(FDS_MOST * sizeof(int))] __attribute__((aligned(8))) = {0};
	struct iovec part = {.iov_base = (void *)message, .iov_len = sizeof(*message)};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	if (count) {
		header.msg_control = control;
		header.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
	}
	return sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(*message);
}

/* Always false: nothing follows a refusal but the end of the connection. */
__attribute__((format(printf, 3, 4))) static bool refuse(struct connection *connection,
                                                         enum aliquot_refusal why,
                                                         const char *format, ...)
{
	struct aliquot_message message = aliquot_message_make(ALIQUOT_REFUSED, why);
	va_list args;
	va_start(args, format);
	vsnprintf(message.text, sizeof(message.text), format, args);
	va_end(args);
	send_message(connection->watch.fd, &message, NULL, 0);
	return false;
}

static bool may_join(const struct grant *grant, uint32_t uid)
{
	return grants_life(grant) == ALIQUOT_KEPT || uid == grant->limits->owner_uid || uid == 0 ||
	       uid == geteuid();
}

static bool on_hello(struct connection *connection, uint64_t inner_pid)
{
	struct grant *grant = connection->grant;
	struct identity who;
	struct seat seat;
	if (!grants_check(grant))
		return refuse(connection, ALIQUOT_REFUSED_BROKEN, "grant %s is broken: %.60s", grant->name,
		              grant->broken);
	if (grants_life(grant) == ALIQUOT_ENDED)
		return refuse(connection, ALIQUOT_REFUSED_ENDED, "grant %s takes nobody in any more",
		              grant->name);
	if (inner_pid == 0 || inner_pid > INT32_MAX)
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED, "HELLO carries the sender's own pid");
	int error = identity_of_peer(connection->watch.fd, &who);
	if (error == -ESRCH)
		return false;
	if (error == -EXDEV)
		return refuse(connection, ALIQUOT_REFUSED_OWNER,
		              "the arbiter's pid namespace does not hold this process");
	if (error)
		return refuse(connection, ALIQUOT_REFUSED_FULL, "the arbiter cannot watch more: %s",
		              strerror(-error));
	if (!may_join(grant, who.uid)) {
		close(who.pidfd);
		log_event("grant %s: process %d of uid %u refused", grant->name, who.pid, who.uid);
		return refuse(connection, ALIQUOT_REFUSED_OWNER, "grant %s is another user's", grant->name);
	}
	if (grants_hold(grant) != ALIQUOT_HOLD_TAKEN) { /* who freezes it must know who is in it */
		close(who.pidfd);
		return refuse(connection, ALIQUOT_REFUSED_PARKED, "grant %s is being frozen, or is",
		              grant->name);
	}
	enum aliquot_refusal refusal = processes_join(grant, &who, (int32_t)inner_pid, &seat, &error);
	if (refusal == ALIQUOT_REFUSED_TWICE)
		return refuse(
			connection, refusal,
			"process %d is in already: a second copy of the driver library in one program",
			who.pid);
	if (refusal && error)
		return refuse(connection, refusal, "the arbiter has no pages for one more process: %s",
		              strerror(-error));
	if (refusal)
		return refuse(connection, refusal, "grant %s has all the processes it may have",
		              grant->name);
	struct aliquot_message welcome = aliquot_message_make(ALIQUOT_WELCOME, seat.slot);
	int fds[] = {grant->limits_fd, grant->usage_fd, seat.pages.credit, seat.pages.work};
	bool sent = send_message(connection->watch.fd, &welcome, fds, FDS_MOST);
	pair_close(&seat.pages);
	return sent;
}

/* The process of this grant that the kernel says is speaking, or NULL. */
static struct process *speaker(struct connection *connection)
{
	int32_t pid = 0;
	if (identity_pid_of_peer(connection->watch.fd, &pid))
		return NULL;
	return processes_find(connection->grant, pid);
}

static bool on_measure(struct connection *connection, uint64_t for_context)
{
	struct process *process = speaker(connection);
	if (!process)
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED, "MEASURE before HELLO");
	measure_process(process, true, for_context);
	struct aliquot_message measured = aliquot_message_make(ALIQUOT_MEASURED, 0);
	return send_message(connection->watch.fd, &measured, NULL, 0);
}

static bool on_ring(struct connection *connection)
{
	if (!speaker(connection))
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED, "RING before HELLO");
	credit_wake(&connection->arbiter->credit);
	return true;
}

/* False: the connection is over. */
static bool on_bytes(struct connection *connection, const void *bytes, size_t size)
{
	struct aliquot_message message;
	enum aliquot_refusal wrong = aliquot_message_read(bytes, size, &message);
	if (wrong == ALIQUOT_REFUSED_VERSION)
		return refuse(connection, wrong, "the arbiter speaks version %u of the protocol",
		              ALIQUOT_PROTOCOL);
	if (wrong)
		return refuse(connection, wrong, "not a message");
	switch (message.kind) {
	case ALIQUOT_HELLO:
		return on_hello(connection, message.value);
	case ALIQUOT_MEASURE:
		return on_measure(connection, message.value);
	case ALIQUOT_RING:
		return on_ring(connection);
	default:
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED, "not a message for the arbiter");
	}
}

void tenants_on_ready(struct watch *watch, uint32_t events)
{
	(void)events;
	struct connection *connection = CONTAINER(watch, struct connection, watch);
	for (int turn = 0; turn < MESSAGES_PER_TURN; turn++) {
		char bytes[sizeof(struct aliquot_message)];
		/* MSG_TRUNC: the true size of what was sent, so that too long is not taken for right. */
		ssize_t size = recv(watch->fd, bytes, sizeof(bytes), MSG_TRUNC | MSG_DONTWAIT);
		if (size < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (size > 0)
			connection_heard(connection);
		if (size <= 0 || !on_bytes(connection, bytes, (size_t)size)) {
			connection_close(connection);
			return;
		}
	}
}
