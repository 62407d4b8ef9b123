/* Control and tenant connections. The arbiter never blocks on one: each has 1 s for its first message,
 * then 5 s more.
 *
 * The number of connections is limited: for the control socket and each of its users (callers.h), for
 * all grants together and for each grant. A grant may always have a few. So a tenant that opens as
 * many as it can blocks neither other grants nor the control socket, and a user who does blocks no
 * other user. At a limit the arbiter stops accepting, and new connections wait in the kernel's queue
 * until one ends; a user above the own limit is told so instead. If the arbiter runs out of
 * descriptors it stops accepting for a moment.
 *
 * Programs of a grant that send so much that they take too much of the arbiter's time (callers.h) are
 * not read for a while. Their messages wait in the kernel, and other grants do not notice.
 */
#ifndef ARBITER_CONNECTIONS_H
#define ARBITER_CONNECTIONS_H

#include "aliquot/protocol.h"
#include "arbiter.h"
#include "control_parse.h"
#include "json.h"
#include "processes.h"

struct grant;

struct connection {
	struct arbiter *arbiter;
	struct grant *grant; /* NULL: a control connection */
	struct watch watch;
	struct timer timeout;
	bool received; /* its first message has come */
	/* A control connection's peer, as the kernel says. */
	uint32_t uid;
	struct caller *caller; /* its user's part (callers.h); NULL: not bounded */
	struct connection *next, *previous;
	/* A control connection's request and reply. */
	char request[CONTROL_LINE_MAX];
	size_t request_used;
	struct json reply;
	size_t reply_sent;
	struct observer_wait fresh; /* `status` waits for new snapshots */
	/* A tenant's message that needs a new measurement before it is answered. While one is under way
	 * no other message is read. */
	struct measurement measurement;
	struct aliquot_message question;
};

/* Accepts all connections that wait at `listener`, up to the limit. */
void connections_accept(struct arbiter *arbiter, int listener, struct grant *grant,
                        void (*ready)(struct watch *watch, uint32_t events));

/* A whole message has come; the first one extends the timeout. */
void connection_received(struct connection *connection);

void connection_close(struct connection *connection);

/* Counts what messages of a grant's programs took of the main thread's time; may pause the grant. */
void connections_charge(struct grant *grant, uint64_t spent_ns);
void connections_on_pause_over(struct timer *timer);
/* Reads the next message of a tenant when it comes: not while one is being answered, or in a pause. */
void connections_watch_tenant(struct connection *connection);
void connections_close_of(struct arbiter *arbiter, struct grant *grant);
void connections_close_all(struct arbiter *arbiter);

/* The epoll events for the grant's listening socket, or for the control socket (NULL). */
uint32_t connections_listen_events(const struct arbiter *arbiter, const struct grant *grant);
void connections_on_resume(struct timer *timer);

#endif
