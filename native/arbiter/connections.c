#include "connections.h"

#include "callers.h"
#include "grants.h"
#include "identity.h"
#include "log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_CONTROL 256u
#define MAX_TENANTS 512u
#define MAX_PER_GRANT 32u
#define ALWAYS_PER_GRANT 4u /* whatever other grants have */
#define FIRST_TIMEOUT_NS (1 * SECOND_NS)
#define TIMEOUT_NS (5 * SECOND_NS)
#define PAUSE_NS (100 * MILLISECOND_NS)

static bool is_below_limit(const struct arbiter *arbiter, const struct grant *grant)
{
	if (!grant)
		return arbiter->control_count < MAX_CONTROL;
	return grant->connection_count < ALWAYS_PER_GRANT ||
	       (arbiter->tenant_count < MAX_TENANTS && grant->connection_count < MAX_PER_GRANT);
}

uint32_t connections_listen_events(const struct arbiter *arbiter, const struct grant *grant)
{
	bool paused = arbiter->paused || (grant && grant->pause.due);
	return paused || !is_below_limit(arbiter, grant) ? 0 : EPOLLIN;
}

static void rewatch(struct arbiter *arbiter, struct grant *grant)
{
	loop_rewatch(&arbiter->loop, grant ? &grant->listener : &arbiter->control,
	             connections_listen_events(arbiter, grant));
}

static void rewatch_grants(struct arbiter *arbiter)
{
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		rewatch(arbiter, grant);
}

/* Counts one more or one less; sockets stop listening at a limit and listen again below it. */
static void count_connection(struct arbiter *arbiter, struct grant *grant, int change)
{
	bool was_below = is_below_limit(arbiter, grant),
		 all_were_below = arbiter->tenant_count < MAX_TENANTS;
	if (grant) {
		grant->connection_count += (unsigned)change;
		arbiter->tenant_count += (unsigned)change;
	} else {
		arbiter->control_count += (unsigned)change;
	}
	if (all_were_below != (arbiter->tenant_count < MAX_TENANTS))
		rewatch_grants(arbiter);
	else if (was_below != is_below_limit(arbiter, grant))
		rewatch(arbiter, grant);
}

static void set_paused(struct arbiter *arbiter, bool paused)
{
	arbiter->paused = paused;
	rewatch(arbiter, NULL);
	rewatch_grants(arbiter);
}

void connections_on_resume(struct timer *timer)
{
	set_paused(CONTAINER(timer, struct arbiter, resume), false);
}

void connections_watch_tenant(struct connection *connection)
{
	bool reads = !connection->measurement.process && !connection->grant->pause.due;
	loop_rewatch(&connection->arbiter->loop, &connection->watch, reads ? EPOLLIN : 0);
}

static void rewatch_tenants(struct grant *grant)
{
	struct arbiter *arbiter = grant->arbiter;
	rewatch(arbiter, grant);
	for (struct connection *one = arbiter->connections; one; one = one->next)
		if (one->grant == grant)
			connections_watch_tenant(one);
}

void connections_charge(struct grant *grant, uint64_t spent_ns)
{
	uint64_t until = callers_charge_grant(&grant->budget, spent_ns, loop_now());
	if (!until || grant->pause.due || grant->listener.fd < 0) /* the last: it has just ended */
		return;
	log_event("grant %s: its programs send too many messages: not read for a moment", grant->name);
	loop_timer_set(&grant->arbiter->loop, &grant->pause, until);
	rewatch_tenants(grant);
}

void connections_on_pause_over(struct timer *timer)
{
	rewatch_tenants(CONTAINER(timer, struct grant, pause));
}

static void on_timeout(struct timer *timer)
{
	connection_close(CONTAINER(timer, struct connection, timeout));
}

/* Whether the user behind a new control connection may have one more. If not, tells the user and
 * closes it. */
static bool admit(struct connection *connection, int fd)
{
	static const char busy[] = "{\"error\": \"you have too many requests under way: try again\", "
							   "\"code\": \"busy\"}\n";
	if (identity_uid_of_peer(fd, &connection->uid))
		connection->uid = UINT32_MAX;
	if (callers_connect(&connection->arbiter->callers, connection->uid, &connection->caller))
		return true;
	ssize_t ignored = send(fd, busy, sizeof(busy) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	(void)ignored;
	close(fd);
	free(connection);
	return false;
}

/* 0, or -errno: then the caller still owns the descriptor. */
static int add_connection(struct arbiter *arbiter, int fd, struct grant *grant,
                          void (*ready)(struct watch *watch, uint32_t events))
{
	struct connection *connection = calloc(1, sizeof(*connection));
	if (!connection)
		return -ENOMEM;
	connection->arbiter = arbiter;
	connection->grant = grant;
	connection->watch = (struct watch){.fd = -1, .ready = ready};
	connection->timeout.fire = on_timeout;
	if (!grant && !admit(connection, fd))
		return 0;
	int error = loop_watch(&arbiter->loop, &connection->watch, fd, EPOLLIN);
	if (error) {
		callers_disconnect(&arbiter->callers, connection->caller);
		free(connection);
		return error;
	}
	loop_timer_set(&arbiter->loop, &connection->timeout, loop_now() + FIRST_TIMEOUT_NS);
	connection->next = arbiter->connections;
	if (connection->next)
		connection->next->previous = connection;
	arbiter->connections = connection;
	count_connection(arbiter, grant, 1);
	return 0;
}

void connection_received(struct connection *connection)
{
	if (connection->received)
		return;
	connection->received = true;
	loop_timer_set(&connection->arbiter->loop, &connection->timeout, loop_now() + TIMEOUT_NS);
}

void connections_accept(struct arbiter *arbiter, int listener, struct grant *grant,
                        void (*ready)(struct watch *watch, uint32_t events))
{
	while (is_below_limit(arbiter, grant)) {
		int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		int error = fd < 0 ? -errno : add_connection(arbiter, fd, grant, ready);
		if (!error || error == -ECONNABORTED || error == -EINTR)
			continue;
		if (fd >= 0)
			close(fd);
		if (error != -EAGAIN) {
			log_event("accepting no connections for a moment: %s", strerror(-error));
			set_paused(arbiter, true);
			loop_timer_set(&arbiter->loop, &arbiter->resume, loop_now() + PAUSE_NS);
		}
		return;
	}
}

void connection_close(struct connection *connection)
{
	struct arbiter *arbiter = connection->arbiter;
	observer_cancel(&connection->fresh);
	processes_cancel_measurement(&connection->measurement);
	loop_unwatch(&arbiter->loop, &connection->watch);
	loop_timer_stop(&connection->timeout);
	json_free(&connection->reply);
	callers_disconnect(&arbiter->callers, connection->caller);
	if (connection->next)
		connection->next->previous = connection->previous;
	if (connection->previous)
		connection->previous->next = connection->next;
	else
		arbiter->connections = connection->next;
	count_connection(arbiter, connection->grant, -1);
	loop_free_later(&arbiter->loop, connection);
}

void connections_close_of(struct arbiter *arbiter, struct grant *grant)
{
	for (struct connection *connection = arbiter->connections, *next; connection;
	     connection = next) {
		next = connection->next;
		if (connection->grant == grant)
			connection_close(connection);
	}
}

void connections_close_all(struct arbiter *arbiter)
{
	while (arbiter->connections)
		connection_close(arbiter->connections);
}
