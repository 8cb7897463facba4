// SPDX-License-Identifier: Apache-2.0
/* The broker's socket, which provides a window that is shared with a child on this machine. */
#include "guest/transport/connection.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* How long to wait for the reason of a loss. */
#define REASON_MS 100

static bool wait_for_word(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
	vgpu_futex_wait(word, value, ns);
	return true;
}

static bool has_ended(void)
{
	struct pollfd end = { vgpu_connection.fd, POLLIN, 0 };

	/*
	 * After its welcome the broker sends only the reason for ending the connection, so any
	 * input means the end.
	 */
	return poll(&end, 1, 0) == 1;
}

static void leave(char reason[VGPU_WINDOW_REASON_BYTES])
{
	struct vgpu_client_message message;
	struct pollfd word = { vgpu_connection.fd, POLLIN, 0 };

	/* The window may show the end a moment before the broker sends the reason. */
	poll(&word, 1, REASON_MS);
	*reason = 0;
	if (recv(vgpu_connection.fd, &message, sizeof(message), MSG_DONTWAIT) == sizeof(message) &&
	    message.op == VGPU_CLIENT_REFUSED) {
		memcpy(reason, message.reason, VGPU_WINDOW_REASON_BYTES);
		vgpu_make_printable(reason, VGPU_WINDOW_REASON_BYTES);
	}
}

static const struct vgpu_carrier carrier = {
	.wait = wait_for_word,
	.wake = vgpu_futex_wake,
	.has_ended = has_ended,
	.leave = leave,
};

static int open_socket(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	while (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		int error = errno;

		if (error == EINTR)
			continue;
		close(fd);
		return -error;
	}
	return fd;
}

/*
 * Receives the broker's answer and at most one descriptor.  Returns 0 or a negative error number.
 */
static int receive_welcome(int fd, struct vgpu_client_message *message, int *window)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = { message, sizeof(*message) };
	struct msghdr header = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	struct cmsghdr *found;
	ssize_t got;

	*window = -1;
	do
		got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	found = CMSG_FIRSTHDR(&header);
	if (found && found->cmsg_level == SOL_SOCKET && found->cmsg_type == SCM_RIGHTS &&
	    found->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(window, CMSG_DATA(found), sizeof(int));
	if (got == 0)
		return -ECONNRESET;
	return got == sizeof(*message) && !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ? 0 : -EPROTO;
}

static int map(int window, uint64_t bytes)
{
	struct stat status;
	int error;

	if (fstat(window, &status) || status.st_size < 0 || (uint64_t)status.st_size < bytes)
		return -EPROTO;
	error = vgpu_window_map(window, bytes);
	if (!error && !vgpu_window_fits()) {
		vgpu_window_unmap();
		error = -EPROTO;
	}
	return error;
}

int vgpu_socket_connect(const char *path)
{
	struct vgpu_client_message message = { .version = VGPU_CONTROL_VERSION, .op = VGPU_CLIENT_HELLO };
	int fd = open_socket(path), window, error;

	if (fd < 0)
		return vgpu_complain(path, -fd);
	if (send(fd, &message, sizeof(message), MSG_NOSIGNAL) != sizeof(message)) {
		error = errno;
		close(fd);
		return vgpu_complain(path, error);
	}
	error = receive_welcome(fd, &message, &window);
	if (!error && message.op == VGPU_CLIENT_REFUSED) {
		vgpu_make_printable(message.reason, sizeof(message.reason));
		fprintf(stderr, "vgpumgr: refused: %s\n", message.reason);
		error = -ECONNREFUSED;
	} else if (!error && (message.op != VGPU_CLIENT_WELCOME || window < 0)) {
		error = -EPROTO;
	}
	if (!error)
		error = map(window, message.window_bytes);
	if (window >= 0)
		close(window);
	if (error) {
		close(fd);
		if (error != -ECONNREFUSED)
			vgpu_complain(path, -error);
		return error;
	}
	vgpu_connection.carrier = &carrier;
	vgpu_connection.fd = fd;
	return 0;
}
