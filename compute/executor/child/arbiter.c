// SPDX-License-Identifier: Apache-2.0
#include "executor/child/arbiter.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/child/child.h"
#include "executor/child/futex.h"

/* ---- the broker */

static void send_to_broker(const struct vgpu_stream_request *request)
{
	/*
	 * This blocks only if the broker does not read.  The broker then already has more requests
	 * of this child than it needs.
	 */
	while (send(VGPU_FD_ARBITER, request, sizeof(*request), MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			vgpu_child_end("the arbiter's socket: error %d", errno);
}

static void wake_on_this_kernel(_Atomic uint32_t *word)
{
	vgpu_futex_wake(word, true);
}

static int listen_to_words(void (*wake)(void *context), void *context)
{
	(void)wake;
	(void)context;
	return 0;
}

static const struct vgpu_arbiter broker = {
	.wakes_by_words = true,
	.send = send_to_broker,
	.wake_client = wake_on_this_kernel,
	.listen = listen_to_words,
};

/* ---- the kernel module */

static void (*wake_main)(void *context);
static void *wake_context;

static void write_to_module(const struct vgpu_stream_request *request)
{
	while (write(VGPU_FD_ARBITER, request, sizeof(*request)) != sizeof(*request))
		if (errno != EINTR)
			vgpu_child_end("the module's stream: operation %u: %s", request->op, strerror(errno));
}

static void wake_guest(_Atomic uint32_t *word)
{
	const struct vgpu_stream_request ring = { .op = VGPU_STREAM_RING };

	(void)word;
	write_to_module(&ring);
}

static void *receive_rings(void *argument)
{
	uint64_t count;

	for (;;) {
		ssize_t got = read(VGPU_FD_ARBITER, &count, sizeof(count));

		if (got == sizeof(count))
			wake_main(wake_context);
		else if (!got)
			vgpu_child_end("its window has ended");
		else if (got > 0 || errno != EINTR)
			vgpu_child_end("the module's stream: %s", got < 0 ? strerror(errno) : "a short read");
	}
	return argument;
}

static int listen_to_module(void (*wake)(void *context), void *context)
{
	pthread_t thread;

	wake_main = wake;
	wake_context = context;
	return vgpu_child_thread(&thread, receive_rings, NULL);
}

static const struct vgpu_arbiter module = {
	.wakes_by_words = false,
	.send = write_to_module,
	.wake_client = wake_guest,
	.listen = listen_to_module,
};

const struct vgpu_arbiter *vgpu_arbiter_find(void)
{
	struct stat status;

	if (fstat(VGPU_FD_ARBITER, &status))
		vgpu_child_end("the arbiter's descriptor: %s", strerror(errno));
	return S_ISSOCK(status.st_mode) ? &broker : &module;
}
