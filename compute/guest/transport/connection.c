// SPDX-License-Identifier: Apache-2.0
/* Connects this process, maps its window, and notices when either side is gone. */
#include "guest/transport/connection.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* How long to wait for the reason of a loss. */
#define REASON_MS 100

struct vgpu_connection vgpu_connection = {
	.socket = -1,
	.send_lock = PTHREAD_MUTEX_INITIALIZER,
	.receive_lock = PTHREAD_MUTEX_INITIALIZER,
};

static int complain(const char *what, int error)
{
	fprintf(stderr, "vgpumgr: %s: %s\n", what, strerror(error));
	return -error;
}

/* The copy of this process has no window, and must not keep the connection open. */
static void after_fork(void)
{
	if (vgpu_connection.socket >= 0)
		close(vgpu_connection.socket);
	vgpu_connection.socket = -1;
	pthread_mutex_init(&vgpu_connection.send_lock, NULL);
	pthread_mutex_init(&vgpu_connection.receive_lock, NULL);
	atomic_store(&vgpu_connection.forked, true);
}

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

/* Receives the broker's answer and at most one descriptor; returns 0 or a negative error number. */
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

static int map_window(int fd, uint64_t bytes)
{
	struct vgpu_connection *c = &vgpu_connection;
	struct stat status;
	uint8_t *base;

	if (bytes < VGPU_WINDOW_BYTES_MIN || bytes > VGPU_WINDOW_BYTES_MAX || bytes % VGPU_WINDOW_PAGE)
		return -EPROTO;
	if (fstat(fd, &status) || (uint64_t)status.st_size < bytes)
		return -EPROTO;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	if (madvise(base, bytes, MADV_DONTFORK)) {
		int error = errno;

		munmap(base, bytes);
		return -error;
	}
	c->window = (struct vgpu_window *)base;
	if (c->window->magic != VGPU_WINDOW_MAGIC || c->window->version != VGPU_WINDOW_VERSION) {
		c->window = NULL;
		munmap(base, bytes);
		return -EPROTO;
	}
	c->request_data = base + VGPU_WINDOW_REQUEST;
	c->reply_data = base + VGPU_WINDOW_REPLY;
	c->bulk = base + VGPU_WINDOW_BULK;
	c->bulk_bytes = bytes - VGPU_WINDOW_BULK;
	c->tail = c->known_head = c->head = 0;
	vgpu_bulk_start(c->bulk_bytes);
	vgpu_pending_start();
	return 0;
}

/* Polling helps where a processor is left for the child; VGPUMGR_SPIN_US overrides. */
static void choose_spin(void)
{
	const char *text = secure_getenv("VGPUMGR_SPIN_US");
	long most_us = sysconf(_SC_NPROCESSORS_ONLN) > 2 ? 20 : 0;

	if (text && *text) {
		char *end;
		long given = strtol(text, &end, 10);

		if (!*end && given >= 0 && given <= 1000000)
			most_us = given;
	}
	vgpu_connection.spin_ns_most = vgpu_connection.spin_ns = (uint64_t)most_us * 1000;
}

int vgpu_start(void (*other)(const struct vgpu_message *message, uint32_t bytes))
{
	struct vgpu_client_message message = { .version = VGPU_CONTROL_VERSION, .op = VGPU_CLIENT_HELLO };
	const char *path = secure_getenv("VGPUMGR_SOCKET");
	int fd, window, error;

	if (!path || !*path)
		return -ENOENT;
	fd = open_socket(path);
	if (fd < 0)
		return complain(path, -fd);
	if (send(fd, &message, sizeof(message), MSG_NOSIGNAL) != sizeof(message)) {
		error = errno;
		close(fd);
		return complain(path, error);
	}
	error = receive_welcome(fd, &message, &window);
	if (!error && message.op == VGPU_CLIENT_REFUSED) {
		message.reason[sizeof(message.reason) - 1] = 0;
		fprintf(stderr, "vgpumgr: refused: %s\n", message.reason);
		error = -ECONNREFUSED;
	} else if (!error && (message.op != VGPU_CLIENT_WELCOME || window < 0)) {
		error = -EPROTO;
	}
	if (!error)
		error = map_window(window, message.window_bytes);
	if (window >= 0)
		close(window);
	if (error) {
		close(fd);
		if (error != -ECONNREFUSED)
			complain(path, -error);
		return error;
	}
	choose_spin();
	vgpu_connection.socket = fd;
	vgpu_connection.other = other;
	pthread_atfork(NULL, NULL, after_fork);
	return 0;
}

bool vgpu_usable(void)
{
	struct vgpu_connection *c = &vgpu_connection;

	if (atomic_load_explicit(&c->forked, memory_order_relaxed) || !c->window ||
	    atomic_load_explicit(&c->lost, memory_order_relaxed))
		return false;
	if (atomic_load_explicit(&c->window->child, memory_order_relaxed) != VGPU_CHILD_LOST)
		return true;
	vgpu_lose();
	return false;
}

uint64_t vgpu_bulk_total(void)
{
	return vgpu_connection.bulk_bytes;
}

uint8_t *vgpu_bulk_address(uint64_t offset)
{
	return vgpu_connection.bulk + offset;
}

/* Says why the device is lost, if the broker does. */
static void say_lost(const struct vgpu_connection *c)
{
	struct vgpu_client_message message;
	struct pollfd word = { c->socket, POLLIN, 0 };

	/* The window may tell of the end a moment before the broker gives the reason. */
	poll(&word, 1, REASON_MS);
	if (recv(c->socket, &message, sizeof(message), MSG_DONTWAIT) == sizeof(message) &&
	    message.op == VGPU_CLIENT_REFUSED && message.reason[0]) {
		message.reason[sizeof(message.reason) - 1] = 0;
		fprintf(stderr, "vgpumgr: this program's device is lost: %s\n", message.reason);
		return;
	}
	fprintf(stderr, "vgpumgr: the accelerator's process is gone; this program's device is lost\n");
}

void vgpu_lose(void)
{
	struct vgpu_connection *c = &vgpu_connection;

	if (!atomic_exchange(&c->lost, true))
		say_lost(c);
	vgpu_kick();
	atomic_fetch_add(&c->window->request.space, 1);
	vgpu_futex_wake(&c->window->request.space);
}

bool vgpu_look(void)
{
	struct vgpu_connection *c = &vgpu_connection;
	struct pollfd end = { c->socket, POLLIN, 0 };

	if (!vgpu_usable())
		return true;
	/* All that the broker sends after its welcome is why it ends the connection. */
	if (poll(&end, 1, 0) == 1) {
		vgpu_lose();
		return true;
	}
	return false;
}
