/* One connection to a program (aliquot/move.h), with a thread of its own that answers it.
 *
 * A message is untrusted; the arbiter has said whose it is. Whatever a program sends, only the program
 * itself is harmed: a thread of its own waits for it, copies that it may not have are not found, and
 * what it may have on the host is bounded by its slice.
 *
 * Up to four pieces are under way at once: the next ones are mapped while one is copied. The mover has
 * dropped a program's memory, and closed its descriptor, before it answers.
 *
 * A program that has closed a connection without waiting for its answers uses its memory again: no move is
 * begun for it any more, and its next connection is served after those that are under way have ended.
 */
#ifndef MOVER_CONNECTION_H
#define MOVER_CONNECTION_H

#include "arena.h"

struct connection;

/* All connections of this mover. */
struct connections {
	struct gpu *gpu;
	struct arena *arena;
	bool checks; /* checksums are stored and compared */
	pthread_mutex_t lock;
	pthread_cond_t ended;     /* a connection has */
	struct connection *first; /* the newest */
};

void connections_init(struct connections *connections, struct gpu *gpu, struct arena *arena,
                      bool checks);

/* Serves a program, of whose grant at most `most` bytes may be on the host. Takes the socket. */
void connections_add(struct connections *connections, int socket, const struct owner *owner,
                     uint64_t most);

/* The program has ended: forgets its copies, also those that are under way. */
void connections_forget(struct connections *connections, int32_t pid, uint64_t start_time);

unsigned connections_count(struct connections *connections);

#endif
