#include "control.h"

#include "connections.h"
#include "enum_names.h"
#include "grant_state.h"
#include "grants.h"
#include "held_memory.h"
#include "identity.h"
#include "log.h"
#include "measure.h"
#include "overcommit.h"
#include "parking.h"
#include "residence.h"
#include "resize.h"
#include "status.h"
#include "unjoined.h"
#include "wants.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define DRAIN_ROUNDS 64

static void reply_failure(struct json *reply, const struct failure *failure)
{
	json_open(reply, NULL, '{');
	json_string(reply, "error", failure->text);
	json_string(reply, "code", failure->code);
	json_close(reply, '}');
}

/* Whether the peer is root or the arbiter's user: they may do more than manage their own grants. */
static bool is_privileged(const struct connection *connection)
{
	return callers_is_privileged(connection->uid);
}

/* The grant that a request names, or NULL. For other users than those two only their own exist. */
static struct grant *named_grant(const struct connection *connection,
                                 const struct control_request *request)
{
	uint32_t owner = request->has_owner ? request->owner_uid : connection->uid;
	if (owner != connection->uid && !is_privileged(connection))
		return NULL;
	return grant_find(connection->arbiter, owner, request->name);
}

/* The same for a request that changes it. NULL and `failure`: it is missing or broken. */
static struct grant *grant_to_change(const struct connection *connection,
                                     const struct control_request *request, struct failure *failure)
{
	struct grant *grant = named_grant(connection, request);
	if (!grant) {
		failure_set(failure, "no-such-grant", "there is no grant named %s", request->name);
		return NULL;
	}
	if (!grant_check(grant)) {
		failure_set(failure, "broken", "grant %s is broken: %s", request->name, grant->broken);
		return NULL;
	}
	return grant;
}

/* The process that the request names as the owner, of any user if the request names none. Its pid is a
 * number of the peer's pid namespace. */
static bool find_named_owner(const struct connection *connection,
                             const struct control_request *request, struct identity *owner,
                             struct failure *failure)
{
	uint32_t uid = request->has_owner ? request->owner_uid : IDENTITY_ANY_USER;
	int32_t peer = 0;
	int error = identity_pid_of_peer(connection->watch.fd, &peer);
	if (!error && (peer <= 0 || identity_is_in_other_namespace(peer)))
		error = -EXDEV;
	if (!error)
		error = identity_of_process(request->owner_pid, request->owner_started, uid, owner);
	if (!error && !request->has_owner) {
		error = identity_uid_of_peer(connection->watch.fd, &owner->uid);
		if (error)
			identity_close(owner);
	}
	if (!error)
		return true;
	const char *why = error == -EXDEV   ? "the caller is in another pid namespace"
	                  : error == -ESRCH ? "it has ended"
	                  : error == -EPERM ? "it does not run as that user"
	                                    : strerror(-error);
	if (!request->has_owner)
		return failure_set(failure, "no-such-process", "no grant can end with process %d: %s",
		                   request->owner_pid, why);
	return failure_set(failure, "no-such-process", "process %d of user %u cannot own a grant: %s",
	                   request->owner_pid, request->owner_uid, why);
}

/* The owner of the requested grant: the peer, the process that root names, or no process if the grant is
 * kept (grants_make). */
static bool find_owner(const struct connection *connection, const struct control_request *request,
                       struct identity *owner, struct failure *failure)
{
	bool kept = request->kept, is_own = request->owner_uid == geteuid();
	*owner = (struct identity){.pidfd = -1};
	if (request->has_owner && !(is_privileged(connection) && (geteuid() == 0 || is_own)))
		return failure_set(failure, "not-allowed", "only root may make a grant for another user");
	if (kept && !is_privileged(connection))
		return failure_set(failure, "not-allowed",
		                   "only root and the arbiter's user may make a kept grant");
	if (request->overcommit_percent &&
	    !is_privileged(connection)) /* it binds all users of the GPU */
		return failure_set(failure, "not-allowed",
		                   "only root and the arbiter's user may give a grant overcommit=PERCENT");
	if (connection->arbiter->pool_admits && !is_privileged(connection))
		return failure_set(failure, "pool-admits", "the pool makes the grants of this machine");
	if (request->owner_pid)
		return find_named_owner(connection, request, owner, failure);
	if (request->has_owner) {
		owner->uid = request->owner_uid;
		return true;
	}
	int error = kept ? identity_uid_of_peer(connection->watch.fd, &owner->uid)
	                 : identity_of_peer(connection->watch.fd, owner);
	if (error)
		return failure_set(failure, "cannot-make", "the arbiter cannot watch the caller: %s",
		                   error == -EXDEV ? "another pid namespace" : strerror(-error));
	return true;
}

static bool answer_make(struct connection *connection, const struct control_request *request,
                        struct failure *failure)
{
	struct arbiter *arbiter = connection->arbiter;
	struct identity owner;
	if (!find_owner(connection, request, &owner, failure))
		return false;
	struct grant *grant = grants_make(arbiter, request, &owner, failure);
	if (!grant)
		return false;
	wants_met(grant);
	char directory[GRANT_PATH_SIZE], marked[sizeof(directory) + 24];
	grant_path(grant, directory);
	snprintf(marked, sizeof(marked), "%s#%llx", directory,
	         (unsigned long long)grant->limits->created_ns);
	json_open(&connection->reply, NULL, '{');
	json_string(&connection->reply, "name", request->name);
	json_string(&connection->reply, "directory", directory);
	json_string(&connection->reply, "grant",
	            marked); /* differs from a later grant of the same name */
	json_close(&connection->reply, '}');
	return true;
}

static bool answer_resize(struct connection *connection, const struct control_request *request,
                          struct failure *failure)
{
	struct resized resized;
	struct grant *grant = grant_to_change(connection, request, failure);
	bool may_grow = !connection->arbiter->pool_admits || is_privileged(connection);
	if (!grant || !resize_grant(grant, request, may_grow, &resized, failure))
		return false;
	struct json *reply = &connection->reply;
	json_open(reply, NULL, '{');
	json_string(reply, "name", request->name);
	json_open(reply, "slices", '[');
	for (uint32_t i = 0; i < request->slice_count; i++) {
		char uuid[ALIQUOT_UUID_TEXT_SIZE];
		aliquot_uuid_write(request->slices[i].uuid, request->slices[i].instance, uuid);
		json_open(reply, NULL, '{');
		json_string(reply, "gpu", uuid);
		json_number(reply, "memory_bytes", resized.slices[i].memory_bytes);
		json_bool(reply, "reached", resized.slices[i].reached);
		json_close(reply, '}');
	}
	json_close(reply, ']');
	json_close(reply, '}');
	return true;
}

static void on_staying(struct observer_wait *wait, bool answered);

/* Whether the reply is sent when NVML has said what the grant leaves on its GPU. */
static bool await_staying(struct connection *connection, const struct grant *grant,
                          enum aliquot_grant_state state)
{
	if (state != ALIQUOT_GRANT_PARKED || grant_state(grant) == state ||
	    !residence_needs_snapshot(grant))
		return false;
	observer_wait(&connection->arbiter->observer, &connection->fresh,
	              UINT64_C(1) << grant_gpu_number(grant, 0), 0, on_staying);
	return true;
}

static bool set_state(struct connection *connection, struct grant *grant,
                      const struct control_request *request, struct failure *failure)
{
	/* It gets its memory when it has its turn. */
	bool takes_turns = grant->record && grant->record->turn.takes &&
	                   request->grant_state == ALIQUOT_GRANT_ACTIVE &&
	                   grant_state(grant) == ALIQUOT_GRANT_PARKED;
	if (takes_turns ? !grant_is_off(grant) && !parking_take_turns(grant, failure)
	                : !grant_state_set(grant, request->grant_state, failure))
		return false;
	if (!takes_turns)
		parking_drop(grant);
	json_open(&connection->reply, NULL, '{');
	json_string(&connection->reply, "name", request->name);
	json_string(&connection->reply, "state",
	            enum_name(&enum_names_grant_state, request->grant_state));
	json_close(&connection->reply, '}');
	return true;
}

static bool answer_set_state(struct connection *connection, const struct control_request *request,
                             struct failure *failure)
{
	if (!is_privileged(connection)) /* while gates are open no compute limit holds */
		return failure_set(failure, "not-allowed",
		                   "only root and the arbiter's user may change the state of a grant");
	struct grant *grant = grant_to_change(connection, request, failure);
	if (!grant)
		return false;
	return await_staying(connection, grant, request->grant_state) ||
	       set_state(connection, grant, request, failure);
}

static bool answer_move(struct connection *connection, const struct control_request *request,
                        struct failure *failure)
{
	if (!is_privileged(connection)) /* it must agree with the state */
		return failure_set(failure, "not-allowed",
		                   "only root and the arbiter's user may move the memory of a grant");
	struct grant *grant = grant_to_change(connection, request, failure);
	if (!grant || (request->on_host && !overcommit_may_leave(grant->arbiter, grant, failure)) ||
	    !residence_set(grant, request->on_host, failure))
		return false;
	if (request->on_host)
		residence_leave(grant, 0); /* a part of it may be there */
	parking_drop(grant);
	json_open(&connection->reply, NULL, '{');
	json_string(&connection->reply, "name", request->name);
	residence_write(grant, &connection->reply);
	json_close(&connection->reply, '}');
	return true;
}

static bool answer_set_cgroup(struct connection *connection, const struct control_request *request,
                              struct failure *failure)
{
	struct arbiter *arbiter = connection->arbiter;
	if (!is_privileged(connection)) /* what is in the cgroup may be ended */
		return failure_set(failure, "not-allowed",
		                   "only root and the arbiter's user may set the cgroup of a grant");
	struct grant *grant = grant_to_change(connection, request, failure);
	if (!grant || !unjoined_set_cgroup(grant, request->cgroup, failure))
		return false;
	measure_start(arbiter);
	json_open(&connection->reply, NULL, '{');
	json_string(&connection->reply, "name", request->name);
	json_string(&connection->reply, "cgroup", request->cgroup);
	json_close(&connection->reply, '}');
	return true;
}

static bool answer_end(struct connection *connection, const struct control_request *request,
                       struct failure *failure)
{
	uint32_t left = 0;
	int32_t pid = 0;
	grants_drop_removed(connection->arbiter);
	struct grant *grant = named_grant(connection, request); /* none: it has ended */
	bool is_owner = grant && !identity_pid_of_peer(connection->watch.fd, &pid) &&
	                grants_is_owned_by(grant, pid);
	if (!is_owner && !is_privileged(connection))
		return failure_set(failure, "not-allowed",
		                   "only its owner, root and the arbiter's user may end a grant");
	if (grant && !grants_end(grant, is_owner, &left, failure))
		return false;
	json_open(&connection->reply, NULL, '{');
	json_string(&connection->reply, "name", request->name);
	json_bool(&connection->reply, "ended", !left);
	json_number(&connection->reply, "processes", left);
	json_close(&connection->reply, '}');
	return true;
}

/* Who could be made a grant may say that one does not fit. */
static bool answer_want(struct connection *connection, const struct control_request *request,
                        struct failure *failure)
{
	struct arbiter *arbiter = connection->arbiter;
	if (arbiter->pool_admits && !is_privileged(connection))
		return failure_set(failure, "pool-admits", "the pool makes the grants of this machine");
	if (!wants_add(arbiter, connection->uid, request, failure))
		return false;
	parking_update(arbiter);
	json_open(&connection->reply, NULL, '{');
	json_bool(&connection->reply, "wanted", true);
	json_close(&connection->reply, '}');
	return true;
}

/* Reads the file of user limits again. */
static bool answer_read_users(struct connection *connection, struct failure *failure)
{
	if (!is_privileged(connection))
		return failure_set(failure, "not-allowed",
		                   "only root and the arbiter's user may change the limits of users");
	if (!users_read(&connection->arbiter->users, failure))
		return false;
	users_write(connection->arbiter, connection->uid, &connection->reply);
	return true;
}

/* Whether the caller may end the arbiter, and nobody loses memory by it. */
static bool may_end(struct connection *connection, struct failure *failure)
{
	if (!is_privileged(connection))
		return failure_set(failure, "not-allowed", "only root and the arbiter's user may stop it");
	grants_drop_removed(connection->arbiter);
	return held_memory_is_none(connection->arbiter, failure);
}

static bool answer_may_end(struct connection *connection, struct failure *failure)
{
	if (!may_end(connection, failure))
		return false;
	json_open(&connection->reply, NULL, '{');
	json_bool(&connection->reply, "may_end", true);
	json_close(&connection->reply, '}');
	return true;
}

/* Ends the arbiter. Its grants may stay only if another arbiter takes its place. */
static bool answer_stop(struct connection *connection, bool is_replaced, struct failure *failure)
{
	struct arbiter *arbiter = connection->arbiter;
	if (!may_end(connection, failure))
		return false;
	unsigned count = grants_count_readable(arbiter);
	if (count && !is_replaced)
		return failure_set(failure, "grants-left", "%u grant%s left: end all of them first", count,
		                   plural(count));
	log_event("ending: %s on request", is_replaced ? "replaced" : "stopped");
	json_open(&connection->reply, NULL, '{');
	json_bool(&connection->reply, "stopped", true);
	json_close(&connection->reply, '}');
	loop_stop(&arbiter->loop);
	return true;
}

static void send_reply(struct connection *connection);

static void on_fresh(struct observer_wait *wait, bool answered)
{
	struct connection *connection = CONTAINER(wait, struct connection, fresh);
	uint64_t unseen = observer_unseen(&connection->arbiter->observer);
	if (answered && unseen) { /* instances that the scan has found */
		observer_wait(&connection->arbiter->observer, wait, unseen, 0, on_fresh);
		return;
	}
	/* If NVML is silent, what it said last is reported. */
	uint64_t begun = callers_time_ns();
	status_write(connection->arbiter, connection->uid, &connection->reply);
	callers_charge(connection->caller, callers_time_ns() - begun);
	json_end(&connection->reply);
	send_reply(connection);
}

/* Parks the grant; it may have ended or changed meanwhile. */
static void on_staying(struct observer_wait *wait, bool answered)
{
	struct connection *connection = CONTAINER(wait, struct connection, fresh);
	struct failure failure = {.reader = connection->uid};
	struct control_request request;
	const char *wrong;
	control_parse(connection->request, connection->request_used - 1, &request, &wrong);
	struct grant *grant = grant_to_change(connection, &request, &failure);
	if (grant)
		residence_take_staying(grant, answered);
	if (!grant || !set_state(connection, grant, &request, &failure))
		reply_failure(&connection->reply, &failure);
	json_end(&connection->reply);
	send_reply(connection);
}

/* The reply is sent when NVML has answered. */
static bool answer_status(struct connection *connection)
{
	struct observer *observer = &connection->arbiter->observer;
	uint64_t gpus = observer_all(observer);
	observer_scan(observer);
	if (gpus)
		observer_wait(observer, &connection->fresh, gpus, 0, on_fresh);
	else
		status_write(connection->arbiter, connection->uid, &connection->reply);
	return true;
}

static bool answer(struct connection *connection, size_t length, struct failure *failure)
{
	struct control_request request;
	const char *wrong;
	if (control_parse(connection->request, length, &request, &wrong))
		return failure_set(failure, "malformed", "%s", wrong);
	switch (request.kind) {
	case CONTROL_MAKE:
		return answer_make(connection, &request, failure);
	case CONTROL_RESIZE:
		return answer_resize(connection, &request, failure);
	case CONTROL_SET_STATE:
		return answer_set_state(connection, &request, failure);
	case CONTROL_MOVE:
		return answer_move(connection, &request, failure);
	case CONTROL_SET_CGROUP:
		return answer_set_cgroup(connection, &request, failure);
	case CONTROL_END:
		return answer_end(connection, &request, failure);
	case CONTROL_WANT:
		return answer_want(connection, &request, failure);
	case CONTROL_STOP:
		return answer_stop(connection, false, failure);
	case CONTROL_REPLACE:
		return answer_stop(connection, true, failure);
	case CONTROL_MAY_END:
		return answer_may_end(connection, failure);
	case CONTROL_READ_USERS:
		return answer_read_users(connection, failure);
	case CONTROL_LIMITS:
		users_write(connection->arbiter, connection->uid, &connection->reply);
		return true;
	case CONTROL_STATUS:
		return answer_status(connection);
	}
	return failure_set(failure, "malformed", "unknown request");
}

static bool timed_answer(struct connection *connection, size_t length, struct failure *failure)
{
	uint64_t begun = callers_time_ns();
	bool done = answer(connection, length, failure);
	callers_charge(connection->caller, callers_time_ns() - begun);
	return done;
}

/* Unread bytes at the close would reset the connection and cut off the reply. */
static void drain(struct connection *connection)
{
	for (int i = 0; i < DRAIN_ROUNDS; i++)
		if (recv(connection->watch.fd, connection->request, sizeof(connection->request),
		         MSG_DONTWAIT) <= 0)
			return;
}

/* Sends the rest of the reply, then closes the connection. */
static void send_reply(struct connection *connection)
{
	struct json *reply = &connection->reply;
	while (!reply->failed && connection->reply_sent < reply->used) {
		ssize_t sent = send(connection->watch.fd, reply->text + connection->reply_sent,
		                    reply->used - connection->reply_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno == EAGAIN) {
			loop_rewatch(&connection->arbiter->loop, &connection->watch, EPOLLOUT);
			return;
		}
		if (sent < 0)
			break;
		connection->reply_sent += (size_t)sent;
	}
	drain(connection);
	connection_close(connection);
}

/* The length of a complete request. -1: incomplete; -2: more than one line, or too long. */
static ssize_t whole_line(const struct connection *connection, bool at_end)
{
	const char *end = memchr(connection->request, '\n', connection->request_used);
	size_t length = end ? (size_t)(end - connection->request) : 0;
	if (!end)
		return at_end || connection->request_used == sizeof(connection->request) ? -2 : -1;
	return length + 1 == connection->request_used ? (ssize_t)length : -2;
}

static void on_request(struct connection *connection)
{
	ssize_t length = -1;
	while (length == -1) {
		ssize_t more = recv(connection->watch.fd, connection->request + connection->request_used,
		                    sizeof(connection->request) - connection->request_used, MSG_DONTWAIT);
		if (more < 0 && errno == EINTR)
			continue;
		if (more < 0 && errno == EAGAIN)
			return;
		if (more < 0 || (more == 0 && !connection->request_used)) {
			connection_close(connection);
			return;
		}
		connection->request_used += (size_t)more;
		length = whole_line(connection, more == 0);
	}
	connection_received(connection);
	struct failure failure = {.reader = connection->uid};
	bool done = false;
	if (!callers_request(connection->caller, loop_now()))
		failure_set(&failure, "busy", "you made too many requests: try again");
	else if (length < 0)
		failure_set(&failure, "malformed",
		            "a request is one line of at most %u bytes, newline included",
		            CONTROL_LINE_MAX);
	else
		done = timed_answer(connection, (size_t)length, &failure);
	if (connection->fresh.gpus) {
		loop_rewatch(&connection->arbiter->loop, &connection->watch, 0);
		return;
	}
	if (!done)
		reply_failure(&connection->reply, &failure);
	json_end(&connection->reply);
	send_reply(connection);
}

static void on_ready(struct watch *watch, uint32_t events)
{
	struct connection *connection = CONTAINER(watch, struct connection, watch);
	bool waits = connection->reply.used || connection->fresh.gpus;
	if (waits && (events & (EPOLLERR | EPOLLHUP)))
		connection_close(connection);
	else if (connection->reply.used)
		send_reply(connection);
	else
		on_request(connection);
}

static void on_connection(struct watch *watch, uint32_t events)
{
	(void)events;
	struct arbiter *arbiter = CONTAINER(watch, struct arbiter, control);
	connections_accept(arbiter, watch->fd, NULL, on_ready);
}

bool control_listen(struct arbiter *arbiter, struct failure *failure)
{
	/* Every user may ask root's arbiter for grants; the kernel names the asking user. */
	mode_t mode = geteuid() == 0 ? 0666 : 0600;
	int fd = state_listen(arbiter->state->directory, "control", SOCK_STREAM, mode);
	if (fd < 0)
		return failure_set(failure, "state", "%s/control cannot be created: %s",
		                   arbiter->state->path, strerror(-fd));
	arbiter->control.ready = on_connection;
	int error = loop_watch(&arbiter->loop, &arbiter->control, fd, EPOLLIN);
	if (error) {
		close(fd);
		return failure_set(failure, "loop", "the control socket cannot be watched: %s",
		                   strerror(-error));
	}
	return true;
}

void control_close(struct arbiter *arbiter)
{
	unlinkat(arbiter->state->directory, "control", 0);
	loop_unwatch(&arbiter->loop, &arbiter->control);
}
