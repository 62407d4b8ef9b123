#include "page_store.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MS 1000

enum message_kind { STORE = 1, DROP = 2 };

/* From the child; STORE carries the descriptors of the pages. */
struct message {
	uint32_t kind;
	uint32_t slices;
	uint64_t number;
	struct page_owner owner;
};

/* From the parent, to a STORE. */
struct answer {
	uint64_t number;
	int32_t error; /* -errno */
	uint32_t reserved;
};

void page_store_init(struct page_store *store)
{
	*store = (struct page_store){.parent_end = -1, .child_end = -1};
}

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void free_all(struct stored_pages *stored)
{
	while (stored) {
		struct stored_pages *next = stored->next;
		process_pages_unmap(&stored->pages);
		free(stored);
		stored = next;
	}
}

void page_store_close(struct page_store *store)
{
	free_all(store->all);
	free_all(store->dropped);
	store->all = store->dropped = NULL;
	close_end(&store->parent_end);
	close_end(&store->child_end);
}

int page_store_prepare(struct page_store *store)
{
	int ends[2];
	close_end(&store->parent_end);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends))
		return -errno;
	store->parent_end = ends[0];
	store->child_end = ends[1];
	return 0;
}

void page_store_be_parent(struct page_store *store)
{
	close_end(&store->child_end);
}

void page_store_be_child(struct page_store *store)
{
	close_end(&store->parent_end);
	for (struct stored_pages *stored = store->all; stored; stored = stored->next)
		stored->adopted = false;
}

static struct stored_pages *insert(struct page_store *store, uint64_t number,
                                   const struct page_owner *owner)
{
	struct stored_pages *stored = calloc(1, sizeof(*stored));
	if (!stored)
		return NULL;
	stored->number = number;
	stored->owner = *owner;
	stored->next = store->all;
	store->all = stored;
	return stored;
}

static void unlink_pages(struct page_store *store, struct stored_pages *stored)
{
	struct stored_pages **link = &store->all;
	while (*link && *link != stored)
		link = &(*link)->next;
	if (*link)
		*link = stored->next;
}

/* Receives one message, with two descriptors or none (-1). 1; 0: the child is gone; -1: nothing
 * there. */
static int receive_message(int socket, struct message *message, struct process_page_fds *fds)
{
	char control[CMSG_SPACE(sizeof(*fds))] __attribute__((aligned(8)));
	struct iovec part = {.iov_base = message, .iov_len = sizeof(*message)};
	struct msghdr header = {.msg_iov = &part,
	                        .msg_iovlen = 1,
	                        .msg_control = control,
	                        .msg_controllen = sizeof(control)};
	*fds = (struct process_page_fds){-1, -1};
	ssize_t size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
	if (size != (ssize_t)sizeof(*message))
		return size == 0 ? 0 : -1;
	struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
	if (rights && rights->cmsg_type == SCM_RIGHTS && rights->cmsg_len == CMSG_LEN(sizeof(*fds)))
		memcpy(fds, CMSG_DATA(rights), sizeof(*fds));
	else if (rights && rights->cmsg_type == SCM_RIGHTS) /* only one arrived */
		close(*(int *)CMSG_DATA(rights));
	return 1;
}

/* 0, or -errno. */
static int store_pages(struct page_store *store, const struct message *message,
                       const struct process_page_fds *fds)
{
	struct process_pages pages;
	if (message->number > store->last_number)
		store->last_number = message->number;
	if (fds->work < 0)
		return -EMFILE;
	int error = process_pages_map(fds, message->slices, &pages);
	if (error)
		return error;
	struct stored_pages *stored = insert(store, message->number, &message->owner);
	if (!stored) {
		process_pages_unmap(&pages);
		return -ENOMEM;
	}
	stored->pages = pages;
	return 0;
}

static void remove_pages(struct page_store *store, uint64_t number)
{
	struct stored_pages *stored = store->all;
	while (stored && stored->number != number)
		stored = stored->next;
	if (!stored)
		return;
	unlink_pages(store, stored);
	process_pages_unmap(&stored->pages);
	free(stored);
}

void page_store_serve(struct page_store *store)
{
	struct message message;
	struct process_page_fds fds;
	int more;
	while ((more = receive_message(store->parent_end, &message, &fds)) > 0) {
		if (message.kind == DROP) {
			remove_pages(store, message.number);
			continue;
		}
		struct answer answer = {.number = message.number,
		                        .error = store_pages(store, &message, &fds)};
		if (fds.credit >= 0)
			process_pages_close(&fds);
		send(store->parent_end, &answer, sizeof(answer), MSG_NOSIGNAL);
	}
	if (more == 0)
		close_end(&store->parent_end);
}

unsigned page_store_open_gates(struct page_store *store)
{
	unsigned count = 0;
	for (struct stored_pages *stored = store->all; stored; stored = stored->next, count++)
		process_pages_open_gates(&stored->pages);
	return count;
}

static int send_message(struct page_store *store, const struct message *message,
                        const struct process_page_fds *fds)
{
	char control[CMSG_SPACE(sizeof(*fds))] __attribute__((aligned(8))) = {0};
	struct iovec part = {.iov_base = (void *)message, .iov_len = sizeof(*message)};
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
	return sendmsg(store->child_end, &header, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Reports dropped pages to the parent; a report that cannot be sent now is sent the next time. */
static void report_dropped(struct page_store *store)
{
	while (store->dropped) {
		struct stored_pages *stored = store->dropped;
		struct message message = {.kind = DROP, .number = stored->number};
		if (send_message(store, &message, NULL))
			return;
		store->dropped = stored->next;
		free(stored);
	}
}

/* Waits until the socket is ready: 0, or -errno. */
static int wait_for(struct page_store *store, short what)
{
	struct pollfd poller = {.fd = store->child_end, .events = what};
	int ready;
	do
		ready = poll(&poller, 1, ANSWER_MS);
	while (ready < 0 && errno == EINTR);
	return ready < 0 ? -errno : ready ? 0 : -ETIMEDOUT;
}

/* Waits for the parent's answer to that STORE: 0, or -errno. Skips late answers to earlier ones. */
static int wait_for_answer(struct page_store *store, uint64_t number)
{
	for (;;) {
		struct answer answer;
		int error = wait_for(store, POLLIN);
		if (error)
			return error;
		if (recv(store->child_end, &answer, sizeof(answer), 0) != (ssize_t)sizeof(answer))
			return -EPIPE;
		if (answer.number == number)
			return answer.error;
	}
}

static int hand_over(struct page_store *store, const struct stored_pages *stored,
                     const struct process_page_fds *fds)
{
	struct message message = {
		.kind = STORE,
		.slices = stored->pages.slices,
		.number = stored->number,
		.owner = stored->owner,
	};
	int error = send_message(store, &message, fds);
	while (error == -EAGAIN && !(error = wait_for(store, POLLOUT)))
		error = send_message(store, &message, fds);
	if (!error)
		error = wait_for_answer(store, stored->number);
	return error ? error : process_pages_seal(fds);
}

int page_store_add(struct page_store *store, const struct page_owner *owner, uint32_t slices,
                   struct stored_pages **out, struct process_page_fds *fds)
{
	int error = process_pages_make(slices, fds);
	if (error)
		return error;
	struct stored_pages *stored = insert(store, ++store->last_number, owner);
	error = stored ? process_pages_map(fds, slices, &stored->pages) : -ENOMEM;
	if (!error)
		error = hand_over(store, stored, fds);
	if (error) {
		process_pages_close(fds);
		if (stored)
			page_store_drop(store, stored);
		return error;
	}
	stored->adopted = true;
	*out = stored;
	report_dropped(store);
	return 0;
}

static bool is_owned_by(const struct stored_pages *stored, const struct page_owner *owner)
{
	return stored->owner.pid == owner->pid && stored->owner.start_time == owner->start_time &&
	       stored->owner.slot == owner->slot && !strcmp(stored->owner.grant, owner->grant);
}

struct stored_pages *page_store_adopt(struct page_store *store, const struct page_owner *owner,
                                      uint32_t slices)
{
	struct stored_pages *newest = NULL;
	for (struct stored_pages *stored = store->all; stored; stored = stored->next)
		if (is_owned_by(stored, owner) && (!newest || stored->number > newest->number))
			newest = stored;
	if (!newest || newest->pages.slices != slices)
		return NULL;
	newest->adopted = true;
	return newest;
}

void page_store_drop(struct page_store *store, struct stored_pages *stored)
{
	if (stored->pages.credit)
		process_pages_open_gates(&stored->pages);
	unlink_pages(store, stored);
	process_pages_unmap(&stored->pages);
	stored->next = store->dropped;
	store->dropped = stored;
	report_dropped(store);
}

void page_store_drop_unadopted(struct page_store *store)
{
	for (struct stored_pages *stored = store->all, *next; stored; stored = next) {
		next = stored->next;
		if (!stored->adopted)
			page_store_drop(store, stored);
	}
}
