#include "tenants.h"

#include "aliquot/descriptors.h"
#include "connections.h"
#include "joining.h"
#include "log.h"
#include "measure.h"
#include "movers.h"
#include "rotation.h"
#include "residence.h"
#include "unjoined.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Messages of one connection before the loop serves others. */
#define MESSAGES_PER_ROUND 8
#define MAX_FDS 4
#define RING_NS MILLISECOND_NS /* at least, between two looks because of RING */

static bool send_message(int fd, const struct aliquot_message *message, const int *fds,
                         size_t count)
{
	return aliquot_send_descriptors(fd, message, sizeof(*message), fds, count, MSG_DONTWAIT) ==
	       (ssize_t)sizeof(*message);
}

/* Always false: the connection is closed after a refusal. */
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

static void on_measured(struct measurement *measurement, bool left);

static bool may_join(struct grant *grant, const struct identity *who)
{
	unjoined_forget_removed(grant);
	if (grant->cgroup_is_told && !cgroup_has(grant->cgroup, who->pid))
		return false;
	if (callers_is_privileged(who->uid))
		return true;
	if (grant_is_for_container(grant))
		return grant->cgroup_is_told || !identity_shares_our_mounts(who->pid);
	return who->uid == grant->owner_uid;
}

/* `since`: when the sender was measured, because it had joined already; 0: not yet. */
static bool on_hello(struct connection *connection, uint64_t inner_pid, uint64_t since)
{
	struct grant *grant = connection->grant;
	struct identity who;
	struct join_reply reply;
	if (!grant_check(grant))
		return refuse(connection, ALIQUOT_REFUSED_BROKEN, "grant %s is broken: %.60s",
		              grant_plain_name(grant), grant->broken);
	if (grant_life(grant) == ALIQUOT_ENDED)
		return refuse(connection, ALIQUOT_REFUSED_ENDED,
		              "grant %s has ended: no process can join it", grant_plain_name(grant));
	if (inner_pid == 0 || inner_pid > INT32_MAX)
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED,
		              "HELLO must carry the pid of its sender");
	int error = identity_of_peer(connection->watch.fd, &who);
	if (error == -ESRCH)
		return false;
	if (error == -EXDEV)
		return refuse(connection, ALIQUOT_REFUSED_OWNER,
		              "this process is not visible in the arbiter's pid namespace");
	if (error)
		return refuse(connection, ALIQUOT_REFUSED_FULL,
		              "the arbiter cannot watch another process: %s", strerror(-error));
	if (!may_join(grant, &who)) {
		close(who.pidfd);
		log_event("grant %s: process %d of uid %u refused", grant->name, who.pid, who.uid);
		return refuse(connection, ALIQUOT_REFUSED_OWNER, "this grant belongs to another user%s",
		              grant_is_for_container(grant) ? "'s container" : "");
	}
	if (grant_state(grant) != ALIQUOT_GRANT_ACTIVE) { /* its processes are being frozen or thawed */
		close(who.pidfd);
		joining_drop_old_program(grant, &who);
		rotation_ring(grant, true);
		return refuse(connection, ALIQUOT_REFUSED_PARKED, "grant %s is switching or parked",
		              grant_plain_name(grant));
	}
	struct process *unclear = since ? NULL : joining_unclear(grant, &who);
	if (unclear && measure_begin(&connection->measurement, unclear, false, 0, on_measured)) {
		close(who.pidfd);
		return true;
	}
	enum aliquot_refusal refusal = joining_join(grant, &who, (int32_t)inner_pid, since, &reply,
	                                            &error);
	if (refusal == ALIQUOT_REFUSED_TWICE)
		return refuse(
			connection, refusal,
			"process %d has already joined: one program has two copies of the driver library",
			who.pid);
	if (refusal && error)
		return refuse(connection, refusal, "the arbiter has no pages for one more process: %s",
		              strerror(-error));
	if (refusal)
		return refuse(connection, refusal, "grant %s has the maximum number of processes",
		              grant_plain_name(grant));
	struct aliquot_message welcome = aliquot_message_make(ALIQUOT_WELCOME, reply.slot);
	int fds[] = {grant->limits_fd, grant->usage_fd, reply.pages.credit, reply.pages.work};
	bool sent = send_message(connection->watch.fd, &welcome, fds, MAX_FDS);
	process_pages_close_fds(&reply.pages);
	return sent;
}

/* The process of this grant that sent the message, by the kernel's credentials; NULL: none. */
static struct process *sender_of(struct connection *connection)
{
	int32_t pid = 0;
	if (identity_pid_of_peer(connection->watch.fd, &pid))
		return NULL;
	return processes_find(connection->grant, pid);
}

static bool send_measured(struct connection *connection)
{
	struct aliquot_message measured = aliquot_message_make(ALIQUOT_MEASURED, 0);
	return send_message(connection->watch.fd, &measured, NULL, 0);
}

static bool on_measure(struct connection *connection, uint64_t for_context)
{
	struct process *process = sender_of(connection);
	if (!process)
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED, "MEASURE before HELLO");
	if (measure_begin(&connection->measurement, process, true, for_context, on_measured))
		return true;
	return send_measured(connection);
}

/* A thousand times a second at most, since each RING of a million would cost the credit thread a look. */
static void wake_credit(struct arbiter *arbiter)
{
	uint64_t now = loop_now();
	if (now >= arbiter->rang_ns + RING_NS) {
		arbiter->rang_ns = now;
		credit_wake(&arbiter->credit);
	} else if (!arbiter->ring.due) {
		loop_timer_set(&arbiter->loop, &arbiter->ring, arbiter->rang_ns + RING_NS);
	}
}

void tenants_on_ring_timer(struct timer *timer)
{
	wake_credit(CONTAINER(timer, struct arbiter, ring));
}

static bool on_ring(struct connection *connection)
{
	if (!sender_of(connection))
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED, "RING before HELLO");
	wake_credit(connection->arbiter);
	rotation_ring(connection->grant, false);
	return true;
}

static bool on_mover(struct connection *connection, uint64_t slice)
{
	const struct process *process = sender_of(connection);
	struct grant *grant = connection->grant;
	char why[100];
	if (!process)
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED, "MOVER before HELLO");
	if (slice >= grant->slice_count)
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED, "grant %s has %u slices",
		              grant_plain_name(grant), grant->slice_count);
	if (!residence_is_swappable(grant))
		return refuse(connection, ALIQUOT_REFUSED_NO_MOVER,
		              "the memory of grant %s cannot leave its GPU: it was made without swap=1",
		              grant_plain_name(grant));
	int fd = movers_connect(process, (uint32_t)slice, why);
	if (fd < 0)
		return refuse(connection, ALIQUOT_REFUSED_NO_MOVER, "%s", why);
	struct aliquot_message answer = aliquot_message_make(ALIQUOT_MOVER, slice);
	bool sent = send_message(connection->watch.fd, &answer, &fd, 1);
	close(fd);
	return sent;
}

/* Answers the message for which a process was measured. */
static void on_measured(struct measurement *measurement, bool left)
{
	struct connection *connection = CONTAINER(measurement, struct connection, measurement);
	bool sent = false;
	if (!left && connection->question.kind == ALIQUOT_HELLO)
		sent = on_hello(connection, connection->question.value, measurement->begun_at);
	else if (!left)
		sent = send_measured(connection);
	if (sent)
		connections_watch_tenant(connection);
	else
		connection_close(connection);
}

/* False: close the connection. */
static bool on_message(struct connection *connection, const void *bytes, size_t size)
{
	struct aliquot_message message;
	enum aliquot_refusal wrong = aliquot_message_read(bytes, size, &message);
	if (wrong == ALIQUOT_REFUSED_VERSION)
		return refuse(connection, wrong, "the arbiter speaks version %u of the protocol",
		              ALIQUOT_PROTOCOL);
	if (wrong)
		return refuse(connection, wrong, "not a message");
	connection->question = message;
	switch (message.kind) {
	case ALIQUOT_HELLO:
		return on_hello(connection, message.value, 0);
	case ALIQUOT_MEASURE:
		return on_measure(connection, message.value);
	case ALIQUOT_RING:
		return on_ring(connection);
	case ALIQUOT_MOVER:
		return on_mover(connection, message.value);
	default:
		return refuse(connection, ALIQUOT_REFUSED_MALFORMED, "not a message for the arbiter");
	}
}

/* Reads what has come, up to a bound. */
static void read_messages(struct connection *connection)
{
	for (int round = 0; round < MESSAGES_PER_ROUND; round++) {
		char bytes[sizeof(struct aliquot_message)];
		/* MSG_TRUNC returns the true size of the message, so that a longer one is refused. */
		ssize_t size = recv(connection->watch.fd, bytes, sizeof(bytes), MSG_TRUNC | MSG_DONTWAIT);
		if (size < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (size > 0)
			connection_received(connection);
		if (size <= 0 || !on_message(connection, bytes, (size_t)size)) {
			connection_close(connection);
			return;
		}
		if (connection->measurement.process) {
			connections_watch_tenant(connection);
			return;
		}
	}
}

void tenants_on_ready(struct watch *watch, uint32_t events)
{
	struct connection *connection = CONTAINER(watch, struct connection, watch);
	struct grant *grant = connection->grant;
	bool waits = connection->measurement.process || grant->pause.due;
	if (waits && !(events & (EPOLLHUP | EPOLLERR)))
		return;  /* the pause began in this round of the loop */
	if (waits) { /* the peer has gone before its answer came */
		connection_close(connection);
		return;
	}
	uint64_t begun = callers_time_ns();
	read_messages(connection);
	connections_charge(grant, callers_time_ns() - begun);
}
