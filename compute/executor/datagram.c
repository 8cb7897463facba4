// SPDX-License-Identifier: Apache-2.0
#include "executor/datagram.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int vgpu_datagram_send(int fd, const void *data, size_t bytes, const int *fds, unsigned int count)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(VGPU_DATAGRAM_FDS_MAX * sizeof(int))];
	} control = { 0 };
	struct iovec part = { (void *)data, bytes };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t sent;

	if (count) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
	}
	do
		sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return -errno;
	return (size_t)sent == bytes ? 0 : -EMSGSIZE;
}

/*
 * Stores the first descriptor in @received unless that is NULL, and closes all others.  Return:
 * true if there were too many descriptors.
 */
static bool take_received(struct msghdr *message, int *received)
{
	struct cmsghdr *header;
	bool more = false;

	for (header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
		size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		int fd;

		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
			if (received && *received < 0) {
				*received = fd;
				continue;
			}
			/* Close unrequested descriptors, so that they do not accumulate. */
			close(fd);
			more = true;
		}
	}
	return more;
}

static int receive(int fd, void *data, size_t bytes, int *received)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(VGPU_DATAGRAM_FDS_MAX * sizeof(int))];
	} control;
	struct iovec part = { data, bytes };
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	ssize_t got;

	do
		got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return errno == EAGAIN ? 0 : -errno;
	if (take_received(&message, received) || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		return -EBADMSG;
	/* An empty datagram looks like the end of the connection, and is treated as such. */
	if (got == 0)
		return -EPIPE;
	return (size_t)got == bytes ? 1 : -EBADMSG;
}

int vgpu_datagram_receive(int fd, void *data, size_t bytes)
{
	return receive(fd, data, bytes, NULL);
}

int vgpu_datagram_receive_fd(int fd, void *data, size_t bytes, int *received)
{
	int got;

	*received = -1;
	got = receive(fd, data, bytes, received);
	if (got != 1 && *received >= 0) {
		close(*received);
		*received = -1;
	}
	return got;
}
