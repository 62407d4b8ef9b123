#include "connections.h"

#include "grants.h"
#include "log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MOST 256u
#define PATIENCE_NS (5 * SECOND_NS)
#define PAUSE_NS (100 * MILLISECOND_NS)

uint32_t connections_listen_events(struct arbiter *arbiter)
{
	return arbiter->paused ? 0 : EPOLLIN;
}

static void set_paused(struct arbiter *arbiter, bool paused)
{
	if (arbiter->paused == paused)
		return;
	arbiter->paused = paused;
	uint32_t events = connections_listen_events(arbiter);
	loop_rewatch(&arbiter->loop, &arbiter->control, events);
	for (struct grant *grant = arbiter->grants; grant; grant = grant->next)
		loop_rewatch(&arbiter->loop, &grant->listener, events);
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
	loop_timer_set(&arbiter->loop, &connection->patience, loop_now() + PATIENCE_NS);
	connection->next = arbiter->connections;
	if (connection->next)
		connection->next->previous = connection;
	arbiter->connections = connection;
	arbiter->connection_count++;
	return 0;
}

void connections_accept(struct arbiter *arbiter, int listener, struct grant *grant,
                        void (*ready)(struct watch *watch, uint32_t events))
{
	while (arbiter->connection_count < CONNECTIONS_MOST) {
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
	set_paused(arbiter, true);
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
	arbiter->connection_count--;
	loop_free_later(&arbiter->loop, connection);
	if (!arbiter->resume.due)
		set_paused(arbiter, false);
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
