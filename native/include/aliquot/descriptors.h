/* Sending and receiving descriptors with a message (SCM_RIGHTS). */
#ifndef ALIQUOT_DESCRIPTORS_H
#define ALIQUOT_DESCRIPTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* That one message can bring; more are not received. */
#define ALIQUOT_MOST_DESCRIPTORS 8

union aliquot_rights {
	struct cmsghdr header;
	char space[CMSG_SPACE(ALIQUOT_MOST_DESCRIPTORS * sizeof(int))];
};

/* sendmsg() with `count` descriptors, ALIQUOT_MOST_DESCRIPTORS at most. */
static inline ssize_t aliquot_send_descriptors(int socket, const void *bytes, size_t size,
                                               const int *fds, size_t count, int flags)
{
	union aliquot_rights rights;
	struct iovec part = {.iov_base = (void *)bytes, .iov_len = size};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (count) {
		memset(&rights, 0, sizeof(rights));
		message.msg_control = &rights;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(header), fds, count * sizeof(int));
	}
	return sendmsg(socket, &message, flags | MSG_NOSIGNAL);
}

/* recvmsg() with one descriptor: *fd is -1 if none came. If more came, they are closed and *wrong is set. */
static inline ssize_t aliquot_receive_descriptor(int socket, void *bytes, size_t size, int *fd,
                                                 bool *wrong, int flags)
{
	union aliquot_rights rights;
	struct iovec part = {.iov_base = bytes, .iov_len = size};
	struct msghdr message = {.msg_iov = &part,
	                         .msg_iovlen = 1,
	                         .msg_control = &rights,
	                         .msg_controllen = sizeof(rights)};
	*fd = -1;
	ssize_t received = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
	*wrong = received >= 0 && message.msg_flags & MSG_CTRUNC;
	struct cmsghdr *header = received >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
	for (; header; header = CMSG_NXTHDR(&message, header)) {
		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int one;
			memcpy(&one, CMSG_DATA(header) + i * sizeof(one), sizeof(one));
			if (*fd < 0) {
				*fd = one;
				continue;
			}
			close(one);
			*wrong = true;
		}
	}
	return received;
}

#endif
