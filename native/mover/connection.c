#include "connection.h"

#include "aliquot/descriptors.h"
#include "checksum.h"
#include "watch.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define UNDER_WAY 4u /* pieces of one connection */
/* Of a copy: what the GPU copies at a time, so long another program's copy waits. */
#define PART (UINT64_C(32) << 20)
#define SMALL_PART (UINT64_C(8) << 20) /* beside a slice of priority latency */
#define MOST_OF_ONE 16u                /* connections of one process */
#define STACK (1u << 20)               /* of a thread */

/* A request that is being carried out. */
struct job {
	struct aliquot_move request;
	bool failed; /* `fault` says why */
	struct fault fault;
	bool has_space; /* reserved, or being read */
	struct arena_space space;
	struct gpu_memory memory;
	CUevent copied; /* kept for the next job in this place */
};

struct connection {
	struct connections *all;
	struct connection *next;
	int socket;
	struct owner owner;
	uint64_t most;
	atomic_bool gone; /* its program has ended */
	bool broken;      /* it cannot be answered, or does not keep to the contract */
	struct gpu_stream stream;
	struct job jobs[UNDER_WAY];
	unsigned first, count;
};

void connections_init(struct connections *connections, struct gpu *gpu, struct arena *arena,
                      bool checks)
{
	*connections = (struct connections){.gpu = gpu, .arena = arena, .checks = checks};
	pthread_mutex_init(&connections->lock, NULL);
	pthread_cond_init(&connections->ended, NULL);
}

/* Whether the program has closed it. */
static bool is_closed(const struct connection *connection)
{
	struct pollfd socket = {.fd = connection->socket};
	return poll(&socket, 1, 0) > 0 && socket.revents & POLLHUP;
}

static void answer(struct connection *connection, const struct aliquot_move *request,
                   const struct fault *fault)
{
	struct aliquot_move message = aliquot_move_make(fault ? ALIQUOT_MOVE_FAILED : ALIQUOT_MOVE_DONE,
	                                                request->piece, request->bytes);
	if (fault) {
		message.failure = fault->code;
		snprintf(message.text, sizeof(message.text), "%s", fault->text);
	}
	ssize_t sent;
	watch_rest(); /* a program may read no answers */
	do
		sent = send(connection->socket, &message, sizeof(message), MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	watch_work();
	if (sent != (ssize_t)sizeof(message))
		connection->broken = true;
}

/* It is not watched: it waits for nobody, and takes long for a large piece. */
static uint64_t checksum_of(const struct connection *connection, const struct arena_space *space)
{
	watch_rest();
	uint64_t sum = checksum(host_memory_at(connection->all->arena->memory, space->offset),
	                        space->bytes);
	watch_work();
	return sum;
}

static bool check_copy(struct connection *connection, const struct job *job, struct fault *fault)
{
	if (!connection->all->checks || !job->space.has_checksum ||
	    checksum_of(connection, &job->space) == job->space.checksum)
		return true;
	return fault_set(fault, ALIQUOT_MOVE_UNKNOWN, "the copy of piece %#llx has changed on the host",
	                 (unsigned long long)job->request.piece);
}

/* Finds the place on the host that the piece is copied to or from. */
static bool find_space(struct connection *connection, struct job *job)
{
	struct arena *arena = connection->all->arena;
	const struct aliquot_move *request = &job->request;
	if (request->kind == ALIQUOT_MOVE_OUT) {
		arena_forget(arena, &connection->owner, request->piece);
		job->has_space = arena_reserve(arena, &connection->owner, request->bytes, connection->most,
		                               &job->space, &job->fault);
		return job->has_space;
	}
	job->has_space = arena_read(arena, &connection->owner, request->piece, request->bytes,
	                            &job->space, &job->fault);
	return job->has_space && check_copy(connection, job, &job->fault);
}

/* Before a piece leaves it is looked at: no memory of the host is taken for what is none. */
static bool start_copy(struct connection *connection, struct job *job, int fd)
{
	struct gpu *gpu = connection->all->gpu;
	struct host_memory *memory = connection->all->arena->memory;
	struct gpu_stream *stream = &connection->stream;
	bool out = job->request.kind == ALIQUOT_MOVE_OUT;
	if (!gpu_enter(gpu, stream, &job->fault) || (!out && !find_space(connection, job)) ||
	    !gpu_import(gpu, fd, job->request.bytes, &job->memory, &job->fault) ||
	    (out && !find_space(connection, job)))
		return false;
	host_memory_register(memory, job->space.offset, job->space.bytes);
	bool beside_latency = atomic_load(&connection->all->arena->page->beside_latency);
	if (gpu_copy(stream, &job->memory, host_memory_at(memory, job->space.offset), out,
	             HOST_MEMORY_STEP, beside_latency ? SMALL_PART : PART, &job->fault) &&
	    gpu_mark(stream, &job->copied, &job->fault))
		return true;
	gpu_drain(stream); /* a part of it may be on its way */
	return false;
}

/* A copy that is not there is forgotten already: the program may ask again if it got no answer. */
static void forget(struct connection *connection, uint64_t piece)
{
	struct arena *arena = connection->all->arena;
	if (piece)
		arena_forget(arena, &connection->owner, piece);
	else
		arena_forget_process(arena, connection->owner.pid, connection->owner.start_time);
}

/* Makes a copy that has arrived an extent. */
static bool keep_copy(struct connection *connection, struct job *job)
{
	struct connections *all = connection->all;
	if (all->checks) {
		job->space.checksum = checksum_of(connection, &job->space);
		job->space.has_checksum = true;
	}
	/* With the lock, so that a program that ends either finds the copy or prevents it. */
	pthread_mutex_lock(&all->lock);
	bool kept = atomic_load(&connection->gone)
	                ? fault_set(&job->fault, ALIQUOT_MOVE_UNKNOWN, "the program has ended")
	                : arena_commit(all->arena, &connection->owner, job->request.piece, &job->space,
	                               &job->fault);
	pthread_mutex_unlock(&all->lock);
	return kept;
}

/* Ends the oldest request: waits for its copy, drops the program's memory, answers. */
static void finish(struct connection *connection)
{
	struct connections *all = connection->all;
	struct job *job = &connection->jobs[connection->first];
	const struct aliquot_move *request = &job->request;
	bool out = request->kind == ALIQUOT_MOVE_OUT;
	connection->first = (connection->first + 1) % UNDER_WAY;
	connection->count--;
	if (request->kind == ALIQUOT_MOVE_FORGET)
		forget(connection, request->piece);
	else if (!job->failed)
		job->failed = !gpu_wait(all->gpu, job->copied, &job->fault);
	gpu_drop(all->gpu, &job->memory);
	if (out && !job->failed)
		job->failed = !keep_copy(connection, job);
	if (job->has_space && !out)
		arena_unread(all->arena, &job->space);
	else if (job->has_space && job->failed)
		arena_release(all->arena, &job->space);
	if (!job->failed && request->kind != ALIQUOT_MOVE_FORGET)
		atomic_fetch_add(out ? &all->arena->page->out_bytes : &all->arena->page->in_bytes,
		                 request->bytes);
	answer(connection, request, job->failed ? &job->fault : NULL);
	if (gpu_is_lost(all->gpu)) { /* the copies stay, and the next mover has a new context */
		fprintf(stderr, "aliquot-mover: the GPU's context is lost: %s\n", job->fault.text);
		_exit(1);
	}
}

/* Whether the request must wait for those before it. */
static bool depends(const struct connection *connection, const struct aliquot_move *request)
{
	for (unsigned i = 0; i < connection->count; i++) {
		const struct job *job = &connection->jobs[(connection->first + i) % UNDER_WAY];
		if (job->request.kind != request->kind || job->request.piece == request->piece)
			return true;
	}
	return false;
}

static void start(struct connection *connection, const struct aliquot_move *request, int fd)
{
	while (connection->count == UNDER_WAY || depends(connection, request))
		finish(connection);
	struct job *job = &connection->jobs[(connection->first + connection->count) % UNDER_WAY];
	*job = (struct job){.request = *request, .copied = job->copied};
	connection->count++;
	bool has_fd = fd >= 0;
	if (has_fd != (request->kind != ALIQUOT_MOVE_FORGET))
		job->failed = !fault_set(&job->fault, ALIQUOT_MOVE_MALFORMED,
		                         has_fd ? "FORGET has no descriptor" : "the descriptor is missing");
	else if (has_fd && is_closed(connection))
		job->failed = !fault_set(&job->fault, ALIQUOT_MOVE_UNKNOWN, "nobody waits for it");
	else if (has_fd)
		job->failed = !start_copy(connection, job, fd);
	if (job->failed)
		gpu_drop(connection->all->gpu, &job->memory);
}

enum received { RECEIVED, NOTHING_YET, CLOSED };

static enum received receive(struct connection *connection)
{
	char bytes[sizeof(struct aliquot_move)];
	/* MSG_TRUNC returns the true size of the message, so that a longer one is refused. */
	int fd, flags = MSG_TRUNC | (connection->count ? MSG_DONTWAIT : 0);
	bool wrong;
	if (!connection->count)
		watch_rest();
	ssize_t size = aliquot_receive_descriptor(connection->socket, bytes, sizeof(bytes), &fd, &wrong,
	                                          flags);
	watch_work();
	if (size < 0 && (errno == EAGAIN || errno == EINTR))
		return NOTHING_YET;
	if (size <= 0) {
		if (fd >= 0) /* of an empty message */
			close(fd);
		return CLOSED;
	}
	struct aliquot_move request = {0};
	if (wrong || !aliquot_move_read(bytes, (size_t)size, &request)) {
		struct fault fault;
		fault_set(&fault, ALIQUOT_MOVE_MALFORMED, "not a request");
		while (connection->count)
			finish(connection);
		answer(connection, &request, &fault);
		connection->broken = true;
	} else {
		start(connection, &request, fd);
	}
	if (fd >= 0)
		close(fd);
	return RECEIVED;
}

static void release(struct connection *connection)
{
	struct connections *all = connection->all;
	pthread_mutex_lock(&all->lock);
	struct connection **link = &all->first;
	while (*link && *link != connection)
		link = &(*link)->next;
	if (*link)
		*link = connection->next;
	pthread_cond_broadcast(&all->ended);
	pthread_mutex_unlock(&all->lock);
	atomic_fetch_sub(&all->arena->page->connection_count, 1);
	close(connection->socket);
	free(connection);
}

static bool is_of(const struct connection *connection, const struct owner *owner)
{
	return connection->owner.pid == owner->pid && connection->owner.start_time == owner->start_time;
}

/* With the lock: an older connection of the same program that it has closed. */
static bool has_closed_others(const struct connection *connection)
{
	for (const struct connection *one = connection->next; one; one = one->next)
		if (is_of(one, &connection->owner) && is_closed(one))
			return true;
	return false;
}

static void wait_for_closed_others(struct connection *connection)
{
	struct connections *all = connection->all;
	pthread_mutex_lock(&all->lock);
	while (has_closed_others(connection))
		pthread_cond_wait(&all->ended, &all->lock);
	pthread_mutex_unlock(&all->lock);
}

static void *serve(void *argument)
{
	struct connection *connection = argument;
	enum received received = RECEIVED;
	watch_enter();
	wait_for_closed_others(connection);
	while (received != CLOSED && !connection->broken) {
		received = receive(connection);
		if (received == NOTHING_YET && connection->count)
			finish(connection);
	}
	while (connection->count)
		finish(connection);
	for (unsigned i = 0; i < UNDER_WAY; i++)
		gpu_end_event(connection->all->gpu, connection->jobs[i].copied);
	gpu_leave(&connection->stream);
	watch_leave();
	release(connection);
	return NULL;
}

static bool start_thread(struct connection *connection)
{
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK);
	bool started = !pthread_create(&thread, &attributes, serve, connection);
	pthread_attr_destroy(&attributes);
	return started;
}

static unsigned count_of(const struct connections *connections, const struct owner *owner)
{
	unsigned count = 0;
	for (const struct connection *one = connections->first; one; one = one->next)
		count += is_of(one, owner);
	return count;
}

void connections_add(struct connections *connections, int socket, const struct owner *owner,
                     uint64_t most)
{
	struct connection *connection = calloc(1, sizeof(*connection));
	if (!connection) {
		close(socket);
		return;
	}
	connection->all = connections;
	connection->socket = socket;
	connection->owner = *owner;
	connection->most = most;
	pthread_mutex_lock(&connections->lock);
	bool too_many = count_of(connections, owner) >= MOST_OF_ONE;
	connection->next = connections->first;
	connections->first = connection;
	pthread_mutex_unlock(&connections->lock);
	atomic_fetch_add(&connections->arena->page->connection_count, 1);
	if (!too_many && start_thread(connection))
		return;
	struct fault fault;
	fault_set(&fault, ALIQUOT_MOVE_NO_MOVER,
	          too_many ? "the program has too many connections" : "the mover has no more threads");
	answer(connection, &(struct aliquot_move){0}, &fault);
	release(connection);
}

void connections_forget(struct connections *connections, int32_t pid, uint64_t start_time)
{
	const struct owner program = {.pid = pid, .start_time = start_time};
	pthread_mutex_lock(&connections->lock);
	for (struct connection *one = connections->first; one; one = one->next) {
		if (!is_of(one, &program))
			continue;
		atomic_store(&one->gone, true);
		shutdown(one->socket, SHUT_RDWR);
	}
	pthread_mutex_unlock(&connections->lock);
	arena_forget_process(connections->arena, pid, start_time);
}

unsigned connections_count(struct connections *connections)
{
	return atomic_load(&connections->arena->page->connection_count);
}
