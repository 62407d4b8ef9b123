/* Connections of both kinds: at most 256, each for at most 5 s, none waited for.
 *
 * When all are taken, listening pauses and newcomers wait in the kernel's queue until one ends. The
 * same happens for a moment when there are no descriptors left.
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

void connection_close(struct connection *connection);
void connections_close_of(struct arbiter *arbiter, struct grant *grant);
void connections_close_all(struct arbiter *arbiter);

/* What a listening socket is watched for now. */
uint32_t connections_listen_events(struct arbiter *arbiter);
void connections_on_resume(struct timer *timer);

#endif
