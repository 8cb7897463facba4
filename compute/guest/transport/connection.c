// SPDX-License-Identifier: Apache-2.0
/* The connection of this process: its start, its window, and its end. */
#include "guest/transport/connection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct vgpu_connection vgpu_connection = {
	.fd = -1,
	.send_lock = PTHREAD_MUTEX_INITIALIZER,
	.receive_lock = PTHREAD_MUTEX_INITIALIZER,
};

int vgpu_complain(const char *what, int error)
{
	fprintf(stderr, "vgpumgr: %s: %s\n", what, strerror(error));
	return -error;
}

void vgpu_make_printable(char *text, size_t bytes)
{
	text[bytes - 1] = 0;
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			*text = '?';
}

/*
 * A forked copy of this process has no window, and must not keep the connection open.
 */
static void after_fork(void)
{
	if (vgpu_connection.fd >= 0)
		close(vgpu_connection.fd);
	vgpu_connection.fd = -1;
	pthread_mutex_init(&vgpu_connection.send_lock, NULL);
	pthread_mutex_init(&vgpu_connection.receive_lock, NULL);
	atomic_store(&vgpu_connection.forked, true);
}

int vgpu_window_map(int fd, uint64_t bytes)
{
	struct vgpu_connection *c = &vgpu_connection;
	uint8_t *base;

	if (bytes < VGPU_WINDOW_BYTES_MIN || bytes > VGPU_WINDOW_BYTES_MAX || bytes % VGPU_WINDOW_PAGE)
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
	c->request_data = base + VGPU_WINDOW_REQUEST;
	c->reply_data = base + VGPU_WINDOW_REPLY;
	c->bulk = base + VGPU_WINDOW_BULK;
	c->bulk_bytes = bytes - VGPU_WINDOW_BULK;
	c->tail = c->known_head = c->head = 0;
	return 0;
}

void vgpu_window_unmap(void)
{
	struct vgpu_connection *c = &vgpu_connection;

	munmap(c->window, VGPU_WINDOW_BULK + c->bulk_bytes);
	c->window = NULL;
	c->request_data = c->reply_data = c->bulk = NULL;
	c->bulk_bytes = 0;
}

bool vgpu_window_fits(void)
{
	const struct vgpu_window *window = vgpu_connection.window;

	return window->magic == VGPU_WINDOW_MAGIC && window->version == VGPU_WINDOW_VERSION;
}

/*
 * Polling helps only if there is a processor left for the child.  VGPUMGR_SPIN_US
 * overrides this.
 */
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
	const char *socket = secure_getenv("VGPUMGR_SOCKET");
	const char *device = secure_getenv("VGPUMGR_DEVICE");
	int error;

	if (socket && *socket)
		error = vgpu_socket_connect(socket);
	else
		error = vgpu_device_connect(device && *device ? device : NULL);
	if (error)
		return error;
	vgpu_bulk_start(vgpu_connection.bulk_bytes);
	vgpu_pending_start();
	choose_spin();
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

static void say_lost(const struct vgpu_connection *c)
{
	char reason[VGPU_WINDOW_REASON_BYTES];

	c->carrier->leave(reason);
	if (*reason)
		fprintf(stderr, "vgpumgr: this program's device is lost: %s\n", reason);
	else
		fprintf(stderr, "vgpumgr: the accelerator's process is gone; this program's device is lost\n");
}

void vgpu_lose(void)
{
	struct vgpu_connection *c = &vgpu_connection;

	if (!atomic_exchange(&c->lost, true))
		say_lost(c);
	vgpu_kick();
	atomic_fetch_add(&c->window->request.space, 1);
	c->carrier->wake(&c->window->request.space);
}

bool vgpu_look(void)
{
	if (!vgpu_usable())
		return true;
	if (!vgpu_connection.carrier->has_ended())
		return false;
	vgpu_lose();
	return true;
}

bool vgpu_sleep(_Atomic uint32_t *word, uint32_t value)
{
	if (!vgpu_connection.carrier->wait(word, value, VGPU_LOOK_NS))
		vgpu_lose();
	return !vgpu_look();
}
