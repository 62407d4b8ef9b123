#include "connections.h"

#include "grants.h"
#include "log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONTROL_MOST 64u
#define TENANTS_MOST 512u
#define OF_GRANT_MOST 32u
#define FIRST_PATIENCE_NS (1 * SECOND_NS)
#define PATIENCE_NS (5 * SECOND_NS)
#define PAUSE_NS (100 * MILLISECOND_NS)

static bool has_place(const struct arbiter *arbiter, const struct grant *grant)
{
	if (!grant)
		return arbiter->control_count < CONTROL_MOST;
	return arbiter->tenant_count < TENANTS_MOST && grant->connection_count < OF_GRANT_MOST;
}

uint32_t connections_listen_events(const struct arbiter *arbiter, const struct grant *grant)
{
	return arbiter->paused || !has_place(arbiter, grant) ? 0 : EPOLLIN;
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

/* One more or one less; who listens when it takes the last place or leaves it stops or goes on. */
static void count(struct arbiter *arbiter, struct grant *grant, int change)
{
	bool had_place = has_place(arbiter, grant), all_had = arbiter->tenant_count < TENANTS_MOST;
	if (grant) {
		grant->connection_count += (unsigned)change;
		arbiter->tenant_count += (unsigned)change;
	} else {
		arbiter->control_count += (unsigned)change;
	}
	if (all_had != (arbiter->tenant_count < TENANTS_MOST))
		rewatch_grants(arbiter);
	else if (had_place != has_place(arbiter, grant))
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

static void on_patience_over(struct timer *timer)
{
	connection_close(CONTAINER(timer, struct connection, patience));
}

/* 0, or -errno; the descriptor stays the caller's then. */
static int add(struct arbiter *arbiter, int fd, struct grant *grant,
               void (*ready)(struct watch *watch, uint32_t events))
{
	struct connection *connection = calloc(1, sizeof(*connection));
	if (!connection)
		return -ENOMEM;
	connection->arbiter = arbiter;
	connection->grant = grant;
	connection->watch = (struct watch){.fd = -1, .ready = ready};
	connection->patience.fire = on_patience_over;
	int error = loop_watch(&arbiter->loop, &connection->watch, fd, EPOLLIN);
	if (error) {
		free(connection);
		return error;
	}
	loop_timer_set(&arbiter->loop, &connection->patience, loop_now() + FIRST_PATIENCE_NS);
	connection->next = arbiter->connections;
	if (connection->next)
		connection->next->previous = connection;
	arbiter->connections = connection;
	count(arbiter, grant, 1);
	return 0;
}

void connection_heard(struct connection *connection)
{
	if (connection->heard)
		return;
	connection->heard = true;
	loop_timer_set(&connection->arbiter->loop, &connection->patience, loop_now() + PATIENCE_NS);
}

void connections_accept(struct arbiter *arbiter, int listener, struct grant *grant,
                        void (*ready)(struct watch *watch, uint32_t events))
{
	while (has_place(arbiter, grant)) {
		int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		int error = fd < 0 ? -errno : add(arbiter, fd, grant, ready);
		if (!error || error == -ECONNABORTED || error == -EINTR)
			continue;
		if (fd >= 0)
			close(fd);
		if (error != -EAGAIN) {
			log_event("no new connections for a moment: %s", strerror(-error));
			set_paused(arbiter, true);
			loop_timer_set(&arbiter->loop, &arbiter->resume, loop_now() + PAUSE_NS);
		}
		return;
	}
}

void connection_close(struct connection *connection)
{
	struct arbiter *arbiter = connection->arbiter;
	loop_unwatch(&arbiter->loop, &connection->watch);
	loop_timer_stop(&connection->patience);
	json_free(&connection->reply);
	if (connection->next)
		connection->next->previous = connection->previous;
	if (connection->previous)
		connection->previous->next = connection->next;
	else
		arbiter->connections = connection->next;
	count(arbiter, connection->grant, -1);
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
