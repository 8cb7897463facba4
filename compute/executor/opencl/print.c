/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that kernels print.  PoCL writes it to the process's standard output when a kernel ends, so
 * standard output is a pipe here.  A separate thread reads the pipe, because a kernel that prints
 * more than fits into the pipe waits for a reader.  In addition, a callback reads the pipe before
 * it reports a command's end, so that the text arrives before the completion.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "backend_private.h"

#define TEXT_MAX	(32u << 10)

void opencl_print_drain(struct vgpu_backend *backend)
{
	struct vgpu_child_services *services = &backend->services;
	union {
		struct vgpu_cl_printf message;
		uint64_t align;
		uint8_t space[sizeof(struct vgpu_cl_printf) + TEXT_MAX];
	} out;
	struct vgpu_cl_printf_parts parts;
	ssize_t got;

	for (unsigned int i = 0; i < 64 && services->reply_room(services->child); i++) {
		got = read(backend->print_fd, out.space + sizeof(out.message), TEXT_MAX);
		if (got <= 0)
			return;
		/* This writes only the fixed part; the text is already in its place. */
		vgpu_cl_place_printf(&out, (uint64_t)got, &parts);
		services->reply(services->child, &out.message.header);
	}
}

static void *print_thread(void *argument)
{
	struct vgpu_backend *backend = argument;
	const struct timespec pause = { .tv_nsec = 2000000 };
	struct pollfd fds[2] = {
		{ .fd = backend->print_fd, .events = POLLIN },
		{ .fd = backend->print_stop_fd, .events = POLLIN },
	};

	for (;;) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return NULL;
		if (fds[1].revents)
			return NULL;
		if (!backend->services.reply_room(backend->services.child)) {
			/* If the client does not read replies, only that client is delayed. */
			nanosleep(&pause, NULL);
			continue;
		}
		pthread_mutex_lock(&backend->print_lock);
		opencl_print_drain(backend);
		pthread_mutex_unlock(&backend->print_lock);
	}
}

bool opencl_print_open(struct vgpu_backend *backend, char *reason)
{
	int fds[2];

	pthread_mutex_init(&backend->print_lock, NULL);
	backend->print_fd = backend->print_stop_fd = backend->print_saved_fd = -1;
	if (pipe2(fds, O_CLOEXEC)) {
		snprintf(reason, VGPU_REASON_BYTES, "pipe: %s", strerror(errno));
		return false;
	}
	backend->print_fd = fds[0];
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	backend->print_saved_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 16);
	dup2(fds[1], STDOUT_FILENO);
	close(fds[1]);
	backend->print_stop_fd = eventfd(0, EFD_CLOEXEC);
	if (backend->print_stop_fd < 0 ||
	    pthread_create(&backend->print_thread, NULL, print_thread, backend)) {
		snprintf(reason, VGPU_REASON_BYTES, "no thread for text that kernels print");
		return false;
	}
	backend->print_thread_runs = true;
	return true;
}

void opencl_print_close(struct vgpu_backend *backend)
{
	uint64_t one = 1;

	if (backend->print_thread_runs && write(backend->print_stop_fd, &one, sizeof(one)) > 0)
		pthread_join(backend->print_thread, NULL);
	if (backend->print_saved_fd >= 0) {
		dup2(backend->print_saved_fd, STDOUT_FILENO);
		close(backend->print_saved_fd);
	}
	if (backend->print_fd >= 0)
		close(backend->print_fd);
	if (backend->print_stop_fd >= 0)
		close(backend->print_stop_fd);
	pthread_mutex_destroy(&backend->print_lock);
}
