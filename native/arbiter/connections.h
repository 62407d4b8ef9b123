/* Connections of both kinds, none waited for: each has 1 s for its first message, then 5 s more.
 *
 * The control socket has places of its own, all grants together have others, and one grant may have
 * some of those: a tenant that takes all it can get keeps neither the other grants nor those who
 * control the arbiter waiting. Where no place is left, listening pauses and newcomers wait in the
 * kernel's queue until one ends. All pause for a moment when there are no descriptors left.
 */
#ifndef ARBITER_CONNECTIONS_H
#define ARBITER_CONNECTIONS_H

#include "arbiter.h"
#include "control_parse.h"
#include "json.h"

struct grant;

struct connection {
	struct arbiter *arbiter;
	struct grant *grant; /* NULL: a control connection */
	struct watch watch;
	struct timer patience;
	bool heard;
	struct connection *next, *previous;
	/* A control connection's request and reply. */
	char request[CONTROL_LINE_MAX];
	size_t request_used;
	struct json reply;
	size_t reply_sent;
};

/* Takes all who wait at `listener`. */
void connections_accept(struct arbiter *arbiter, int listener, struct grant *grant,
                        void (*ready)(struct watch *watch, uint32_t events));

/* Its message has come whole; the first one gives it time for the rest. */
void connection_heard(struct connection *connection);

void connection_close(struct connection *connection);
void connections_close_of(struct arbiter *arbiter, struct grant *grant);
void connections_close_all(struct arbiter *arbiter);

/* What the grant's listening socket, or the control socket (NULL), is watched for now. */
uint32_t connections_listen_events(const struct arbiter *arbiter, const struct grant *grant);
void connections_on_resume(struct timer *timer);

#endif
