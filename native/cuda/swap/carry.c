#define _GNU_SOURCE
#include "swap/carry.h"

#include "aliquot/credit.h"
#include "aliquot/descriptors.h"
#include "aliquot/layout.h"
#include "arbiter_call.h"
#include "session.h"
#include "swap/residence.h"
#include "swap/swappable.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WINDOW 8u /* requests without an answer */
#define LIST_STEP 1024u
/* A mover that died is started again by the arbiter: try that long to reach it. */
#ifndef REACH_MS /* a test has less time */
#define REACH_MS 5000
#endif
#define REACH_ONCE_MS 1000
#define REACH_AGAIN_MS 20
#define LOST_MOST 10u /* connections that one move survives */
/* Longer than a mover needs for one piece, with memory of the host to fill first. */
#define ANSWER_MS 120000
#define CALLED_OFF_MS 1000 /* of a move that was called off: calls of the program wait meanwhile */
#define FORGET_MS 10000
#define LOOK_MS 50 /* whether it was called off */

enum place { HERE, AWAY, EMPTY };

struct piece {
	struct swappable_piece memory;
	enum place place;
	bool leaves; /* it was chosen to */
};

/* All of this is for one thread. */
static struct piece *pieces;
static size_t piece_count;
static uint64_t away_bytes;    /* of pieces that are not HERE */
static _Atomic int mover = -1; /* the connection */
static _Atomic int kept =
	-1; /* a descriptor that stays open: the driver exports faster while one is */
static _Atomic int sending = -1; /* the descriptor that is being sent */
static bool must_forget;         /* the mover may have copies that nobody needs */

/* --- the connection ----------------------------------------------------------------------------- */

/* In this order: a child that is forked meanwhile must not close a number that is another file's by then. */
static void close_fd(_Atomic int *fd)
{
	int open = atomic_exchange(fd, -1);
	if (open >= 0)
		close(open);
}

/* The mover begins nothing more of what was asked on it, also if a child has it open too. */
static void drop_connection(void)
{
	if (mover >= 0)
		shutdown(mover, SHUT_RDWR);
	close_fd(&mover);
}

static bool reach_mover(carry_goes_on *goes_on)
{
	struct timespec moment = {.tv_nsec = REACH_AGAIN_MS * 1000 * 1000};
	int64_t end = residence_now_ms() + REACH_MS;
	if (mover >= 0)
		return true;
	while ((mover = arbiter_mover(REACH_ONCE_MS)) < 0 && residence_now_ms() < end && goes_on())
		nanosleep(&moment, NULL);
	return mover >= 0;
}

/* Send a request, with a descriptor unless it is -1. False: the mover is gone. */
static bool send_request(enum aliquot_move_kind kind, const struct swappable_piece *piece, int fd)
{
	struct aliquot_move request = {
		.magic = ALIQUOT_MOVE_MAGIC,
		.version = ALIQUOT_MOVE_VERSION,
		.kind = (uint16_t)kind,
		.piece = piece->address,
		.bytes = piece->bytes,
	};
	ssize_t sent;
	do
		sent = aliquot_send_descriptors(mover, &request, sizeof(request), &fd, fd >= 0, 0);
	while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)sizeof(request);
}

/* Wait until the mover has sent something. False: it has not in time, or the move was called off. */
static bool await_answer(carry_goes_on *goes_on, int64_t patience_ms)
{
	struct pollfd answer = {.fd = mover, .events = POLLIN};
	int64_t end = residence_now_ms() + patience_ms;
	while (poll(&answer, 1, LOOK_MS) <= 0) {
		int64_t now = residence_now_ms();
		if (!goes_on() && end > now + CALLED_OFF_MS)
			end = now + CALLED_OFF_MS;
		if (now >= end)
			return false;
	}
	return true;
}

/* The answer to the request about this piece: CARRY_DONE, or the failure in *result. False: the mover is gone, does
 * not answer, or its answer is invalid. */
static bool receive_answer(uint64_t address, carry_goes_on *goes_on, int64_t patience_ms,
                           int *result)
{
	struct aliquot_move answer;
	if (!await_answer(goes_on, patience_ms))
		return false;
	ssize_t size = recv(mover, &answer, sizeof(answer), MSG_DONTWAIT);
	if (size != (ssize_t)sizeof(answer) || answer.magic != ALIQUOT_MOVE_MAGIC ||
	    answer.version != ALIQUOT_MOVE_VERSION || answer.piece != address)
		return false;
	if (answer.kind == ALIQUOT_MOVE_DONE)
		*result = CARRY_DONE;
	else
		*result = answer.failure ? (int)answer.failure : ALIQUOT_MOVE_MALFORMED;
	return answer.kind == ALIQUOT_MOVE_DONE || answer.kind == ALIQUOT_MOVE_FAILED;
}

/* --- one piece ---------------------------------------------------------------------------------- */

static int failure_of(CUresult result)
{
	if (result == CUDA_SUCCESS)
		return CARRY_DONE;
	return result == CUDA_ERROR_OUT_OF_MEMORY ? ALIQUOT_MOVE_GPU_FULL : ALIQUOT_MOVE_DRIVER;
}

static void set_place(struct piece *piece, enum place place)
{
	away_bytes -= piece->place == HERE ? 0 : piece->memory.bytes;
	away_bytes += place == HERE ? 0 : piece->memory.bytes;
	piece->place = place;
}

/* A descriptor of its memory, which it gets if it has none and shall come back. */
static int open_piece(struct piece *piece, int *fd)
{
	if (piece->place != AWAY)
		return failure_of(swappable_export(piece->memory.address, fd));
	int result = failure_of(swappable_bring_back(piece->memory.address, fd));
	if (result == CARRY_DONE)
		set_place(piece, EMPTY);
	return result;
}

static int take_away(struct piece *piece)
{
	int result = failure_of(swappable_take_away(piece->memory.address));
	if (result == CARRY_DONE)
		set_place(piece, AWAY);
	return result;
}

/* Ask the mover to copy a piece. *sent is false if the mover is gone. */
static int request_copy(enum aliquot_move_kind kind, struct piece *piece, bool *sent)
{
	int fd = -1, result = open_piece(piece, &fd);
	if (result != CARRY_DONE)
		return result;
	_Atomic int *open = kept < 0 ? &kept : &sending;
	*open = fd;
	must_forget |= kind == ALIQUOT_MOVE_OUT;
	*sent = send_request(kind, &piece->memory, fd);
	close_fd(&sending);
	return CARRY_DONE;
}

/* The mover has copied a piece. */
static int copied(enum aliquot_move_kind kind, struct piece *piece)
{
	if (kind == ALIQUOT_MOVE_OUT)
		return take_away(piece);
	set_place(piece, HERE);
	return CARRY_DONE;
}

/* --- all pieces --------------------------------------------------------------------------------- */

bool carry_list(void)
{
	struct swappable_piece some[LIST_STEP];
	size_t found;
	piece_count = 0;
	away_bytes = 0;
	while ((found = swappable_pieces(piece_count, some, LIST_STEP)) > 0) {
		struct piece *more = realloc(pieces, (piece_count + found) * sizeof(*more));
		if (!more)
			return false;
		pieces = more;
		for (size_t i = 0; i < found; i++)
			pieces[piece_count + i] = (struct piece){.memory = some[i], .place = HERE};
		piece_count += found;
	}
	return true;
}

static int by_size(const void *one, const void *other)
{
	const struct piece *first = one, *second = other;
	if (first->memory.bytes != second->memory.bytes)
		return first->memory.bytes < second->memory.bytes ? 1 : -1;
	return first->memory.address > second->memory.address ? 1 : -1;
}

/* The largest first that do not exceed what shall leave; then the smallest of the rest, if something is
 * missing. So less than its size leaves in excess. */
void carry_choose(uint32_t parts)
{
	uint64_t all = 0;
	qsort(pieces, piece_count, sizeof(*pieces), by_size);
	for (size_t i = 0; i < piece_count; i++)
		all += pieces[i].memory.bytes;
	uint64_t leave = all;
	if (parts && parts - 1 < ALIQUOT_LEAVE_WHOLE) /* rounded up, without overflow */
		leave = all / ALIQUOT_LEAVE_WHOLE * (parts - 1) +
		        (all % ALIQUOT_LEAVE_WHOLE * (parts - 1) + ALIQUOT_LEAVE_WHOLE - 1) /
		            ALIQUOT_LEAVE_WHOLE;
	uint64_t away = carry_away_bytes();
	leave = leave > away ? leave - away : 0;
	struct piece *smallest = NULL;
	for (size_t i = 0; i < piece_count; i++) {
		struct piece *piece = &pieces[i];
		piece->leaves = piece->place == HERE && piece->memory.bytes <= leave;
		leave -= piece->leaves ? piece->memory.bytes : 0;
		if (piece->place == HERE && !piece->leaves)
			smallest = piece;
	}
	if (leave && smallest)
		smallest->leaves = true;
}

uint64_t carry_away_bytes(void)
{
	return away_bytes;
}

/* The next piece from `from` on that such a request is needed for; piece_count: none. */
static size_t next_piece(enum aliquot_move_kind kind, size_t from)
{
	for (; from < piece_count; from++) {
		const struct piece *piece = &pieces[from];
		if (kind == ALIQUOT_MOVE_OUT ? piece->place == HERE && piece->leaves : piece->place != HERE)
			break;
	}
	return from;
}

/* One connection's worth of requests, several at a time. *lost: the connection broke, and those that have no
 * answer are to be asked for again. */
static int carry_some(enum aliquot_move_kind kind, carry_goes_on *goes_on, bool *lost)
{
	size_t asked[WINDOW];
	unsigned first = 0, open = 0;
	int result = CARRY_DONE;
	size_t next = next_piece(kind, 0);
	bool sent = true;
	for (;;) {
		while (result == CARRY_DONE && sent && open < WINDOW && next < piece_count) {
			if (!goes_on()) {
				result = CARRY_CALLED_OFF;
				break;
			}
			result = request_copy(kind, &pieces[next], &sent);
			if (result != CARRY_DONE || !sent)
				break;
			asked[(first + open++) % WINDOW] = next;
			next = next_piece(kind, next + 1);
		}
		if (open == 0)
			break;
		struct piece *piece = &pieces[asked[first]];
		int answer;
		if (!receive_answer(piece->memory.address, goes_on, ANSWER_MS, &answer)) {
			sent = false;
			break;
		}
		first = (first + 1) % WINDOW;
		open--;
		if (answer == CARRY_DONE)
			answer = copied(kind, piece);
		atomic_store(&session_work()->away_bytes, away_bytes);
		if (answer != CARRY_DONE && result <= CARRY_DONE)
			result = answer;
	}
	*lost = !sent;
	return result;
}

static int carry(enum aliquot_move_kind kind, carry_goes_on *goes_on)
{
	int result = CARRY_DONE;
	for (unsigned tries = 0; result == CARRY_DONE && next_piece(kind, 0) < piece_count; tries++) {
		bool lost = false;
		if (tries < LOST_MOST && goes_on() && reach_mover(goes_on))
			result = carry_some(kind, goes_on, &lost);
		else
			result = goes_on() ? ALIQUOT_MOVE_NO_MOVER : CARRY_CALLED_OFF;
		if (lost)
			drop_connection();
	}
	close_fd(&kept);
	return result;
}

static bool always(void)
{
	return true;
}

static bool forget(void)
{
	int result;
	struct swappable_piece all = {0};
	return send_request(ALIQUOT_MOVE_FORGET, &all, -1) &&
	       receive_answer(0, always, FORGET_MS, &result);
}

int carry_out(carry_goes_on *goes_on)
{
	int result = CARRY_DONE;
	for (size_t i = 0; i < piece_count && result == CARRY_DONE; i++)
		if (pieces[i].place == EMPTY)
			result = take_away(&pieces[i]); /* its copy is still there */
	if (result == CARRY_DONE)
		result = carry(ALIQUOT_MOVE_OUT, goes_on);
	if (result == CARRY_DONE)
		drop_connection(); /* nothing of ours stays open while the memory is away */
	return result;
}

int carry_in(carry_goes_on *goes_on)
{
	return carry(ALIQUOT_MOVE_IN, goes_on);
}

void carry_forget(void)
{
	if (must_forget && reach_mover(always))
		must_forget = !forget();
	drop_connection();
}

void carry_forked(void)
{
	close_fd(&mover); /* it stays the parent's */
	close_fd(&kept);
	close_fd(&sending);
	pieces = NULL; /* free() may need a lock of a thread that the child does not have */
	piece_count = 0;
	away_bytes = 0;
	must_forget = false;
}
