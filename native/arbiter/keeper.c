#include "keeper.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MS 1000

enum kind { KEEP = 1, DROP = 2 };

/* From the child; KEEP carries the pair's descriptors. */
struct order {
	uint32_t kind;
	uint32_t slices;
	uint64_t number;
	struct keeping whose;
};

/* From the parent, to a KEEP. */
struct answer {
	uint64_t number;
	int32_t error; /* -errno */
	uint32_t reserved;
};

void keeper_init(struct keeper *keeper)
{
	*keeper = (struct keeper){.parent_end = -1, .child_end = -1};
}

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void free_all(struct kept *kept)
{
	while (kept) {
		struct kept *next = kept->next;
		pair_unmap(&kept->pair);
		free(kept);
		kept = next;
	}
}

void keeper_close(struct keeper *keeper)
{
	free_all(keeper->all);
	free_all(keeper->dropped);
	keeper->all = keeper->dropped = NULL;
	close_end(&keeper->parent_end);
	close_end(&keeper->child_end);
}

int keeper_prepare(struct keeper *keeper)
{
	int ends[2];
	close_end(&keeper->parent_end);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends))
		return -errno;
	keeper->parent_end = ends[0];
	keeper->child_end = ends[1];
	return 0;
}

void keeper_be_parent(struct keeper *keeper)
{
	close_end(&keeper->child_end);
}

void keeper_be_child(struct keeper *keeper)
{
	close_end(&keeper->parent_end);
	for (struct kept *kept = keeper->all; kept; kept = kept->next)
		kept->claimed = false;
}

static struct kept *add(struct keeper *keeper, uint64_t number, const struct keeping *whose)
{
	struct kept *kept = calloc(1, sizeof(*kept));
	if (!kept)
		return NULL;
	kept->number = number;
	kept->whose = *whose;
	kept->next = keeper->all;
	keeper->all = kept;
	return kept;
}

static void take_out(struct keeper *keeper, struct kept *kept)
{
	struct kept **link = &keeper->all;
	while (*link && *link != kept)
		link = &(*link)->next;
	if (*link)
		*link = kept->next;
}

/* What the socket has, with two descriptors or none (-1). 1; 0: the child is gone; -1: nothing. */
static int receive_order(int socket, struct order *order, struct pair_fds *fds)
{
	char control[CMSG_SPACE(sizeof(*fds))] __attribute__((aligned(8)));
	struct iovec part = {.iov_base = order, .iov_len = sizeof(*order)};
	struct msghdr header = {.msg_iov = &part,
	                        .msg_iovlen = 1,
	                        .msg_control = control,
	                        .msg_controllen = sizeof(control)};
	*fds = (struct pair_fds){-1, -1};
	ssize_t size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
	if (size != (ssize_t)sizeof(*order))
		return size == 0 ? 0 : -1;
	struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
	if (rights && rights->cmsg_type == SCM_RIGHTS && rights->cmsg_len == CMSG_LEN(sizeof(*fds)))
		memcpy(fds, CMSG_DATA(rights), sizeof(*fds));
	else if (rights && rights->cmsg_type == SCM_RIGHTS) /* there was room for one alone */
		close(*(int *)CMSG_DATA(rights));
	return 1;
}

/* 0, or -errno. */
static int keep(struct keeper *keeper, const struct order *order, const struct pair_fds *fds)
{
	struct pair pair;
	if (order->number > keeper->last_number)
		keeper->last_number = order->number;
	if (fds->work < 0)
		return -EMFILE;
	int error = pair_map(fds, order->slices, &pair);
	if (error)
		return error;
	struct kept *kept = add(keeper, order->number, &order->whose);
	if (!kept) {
		pair_unmap(&pair);
		return -ENOMEM;
	}
	kept->pair = pair;
	return 0;
}

static void let_go(struct keeper *keeper, uint64_t number)
{
	struct kept *kept = keeper->all;
	while (kept && kept->number != number)
		kept = kept->next;
	if (!kept)
		return;
	take_out(keeper, kept);
	pair_unmap(&kept->pair);
	free(kept);
}

void keeper_serve(struct keeper *keeper)
{
	struct order order;
	struct pair_fds fds;
	int more;
	while ((more = receive_order(keeper->parent_end, &order, &fds)) > 0) {
		if (order.kind == DROP) {
			let_go(keeper, order.number);
			continue;
		}
		struct answer answer = {.number = order.number, .error = keep(keeper, &order, &fds)};
		if (fds.credit >= 0)
			pair_close(&fds);
		send(keeper->parent_end, &answer, sizeof(answer), MSG_NOSIGNAL);
	}
	if (more == 0)
		close_end(&keeper->parent_end);
}

unsigned keeper_open_gates(struct keeper *keeper)
{
	unsigned count = 0;
	for (struct kept *kept = keeper->all; kept; kept = kept->next, count++)
		pair_open_gates(&kept->pair);
	return count;
}

static int send_order(struct keeper *keeper, const struct order *order, const struct pair_fds *fds)
{
	char control[CMSG_SPACE(sizeof(*fds))] __attribute__((aligned(8))) = {0};
	struct iovec part = {.iov_base = (void *)order, .iov_len = sizeof(*order)};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
	if (fds) {
		header.msg_control = control;
		header.msg_controllen = sizeof(control);
		struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(sizeof(*fds));
		memcpy(CMSG_DATA(rights), fds, sizeof(*fds));
	}
	return sendmsg(keeper->child_end, &header, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Tells the parent of what was dropped; what does not go through now waits for the next time. */
static void tell_dropped(struct keeper *keeper)
{
	while (keeper->dropped) {
		struct kept *kept = keeper->dropped;
		struct order order = {.kind = DROP, .number = kept->number};
		if (send_order(keeper, &order, NULL))
			return;
		keeper->dropped = kept->next;
		free(kept);
	}
}

/* Until the socket takes or has something: 0, or -errno. */
static int await(struct keeper *keeper, short what)
{
	struct pollfd poller = {.fd = keeper->child_end, .events = what};
	int ready;
	do
		ready = poll(&poller, 1, ANSWER_MS);
	while (ready < 0 && errno == EINTR);
	return ready < 0 ? -errno : ready ? 0 : -ETIMEDOUT;
}

/* The parent's answer to that KEEP: 0, or -errno. One to an earlier KEEP came too late. */
static int await_answer(struct keeper *keeper, uint64_t number)
{
	for (;;) {
		struct answer answer;
		int error = await(keeper, POLLIN);
		if (error)
			return error;
		if (recv(keeper->child_end, &answer, sizeof(answer), 0) != (ssize_t)sizeof(answer))
			return -EPIPE;
		if (answer.number == number)
			return answer.error;
	}
}

static int hand_over(struct keeper *keeper, const struct kept *kept, const struct pair_fds *fds)
{
	struct order order = {
		.kind = KEEP,
		.slices = kept->pair.slices,
		.number = kept->number,
		.whose = kept->whose,
	};
	int error = send_order(keeper, &order, fds);
	while (error == -EAGAIN && !(error = await(keeper, POLLOUT)))
		error = send_order(keeper, &order, fds);
	if (!error)
		error = await_answer(keeper, kept->number);
	return error ? error : pair_seal(fds);
}

int keeper_make(struct keeper *keeper, const struct keeping *whose, uint32_t slices,
                struct kept **out, struct pair_fds *fds)
{
	int error = pair_make(slices, fds);
	if (error)
		return error;
	struct kept *kept = add(keeper, ++keeper->last_number, whose);
	error = kept ? pair_map(fds, slices, &kept->pair) : -ENOMEM;
	if (!error)
		error = hand_over(keeper, kept, fds);
	if (error) {
		pair_close(fds);
		if (kept)
			keeper_drop(keeper, kept);
		return error;
	}
	kept->claimed = true;
	*out = kept;
	tell_dropped(keeper);
	return 0;
}

static bool is_whose(const struct kept *kept, const struct keeping *whose)
{
	return kept->whose.pid == whose->pid && kept->whose.start_time == whose->start_time &&
	       kept->whose.slot == whose->slot && !strcmp(kept->whose.grant, whose->grant);
}

struct kept *keeper_claim(struct keeper *keeper, const struct keeping *whose, uint32_t slices)
{
	struct kept *newest = NULL;
	for (struct kept *kept = keeper->all; kept; kept = kept->next)
		if (is_whose(kept, whose) && (!newest || kept->number > newest->number))
			newest = kept;
	if (!newest || newest->pair.slices != slices)
		return NULL;
	newest->claimed = true;
	return newest;
}

void keeper_drop(struct keeper *keeper, struct kept *kept)
{
	if (kept->pair.credit)
		pair_open_gates(&kept->pair);
	take_out(keeper, kept);
	pair_unmap(&kept->pair);
	kept->next = keeper->dropped;
	keeper->dropped = kept;
	tell_dropped(keeper);
}

void keeper_drop_unclaimed(struct keeper *keeper)
{
	for (struct kept *kept = keeper->all, *next; kept; kept = next) {
		next = kept->next;
		if (!kept->claimed)
			keeper_drop(keeper, kept);
	}
}
