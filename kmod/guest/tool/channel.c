// SPDX-License-Identifier: GPL-2.0
#include "channel.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "vgpu_guest.h"

#define PIECE 3000	/* divides no size of a ring */
#define PATIENCE_MS 60000

static uint8_t pattern(size_t at)
{
	return at * 7 + (at >> 8);
}

/* Send a piece if there is room for it. How much, or -1 with errno. */
static ssize_t send_some(int fd, size_t at, size_t bytes)
{
	uint8_t piece[PIECE];
	size_t count = bytes - at < PIECE ? bytes - at : PIECE;
	ssize_t sent;

	for (size_t i = 0; i < count; i++)
		piece[i] = pattern(at + i);
	sent = write(fd, piece, count);
	return sent < 0 && errno == EAGAIN ? 0 : sent;
}

/* Take a piece if there is one. How much, or -1 with errno. */
static ssize_t receive_some(int fd, size_t at, size_t *wrong)
{
	uint8_t piece[PIECE];
	ssize_t got = read(fd, piece, sizeof(piece));

	if (got < 0)
		return errno == EAGAIN ? 0 : -1;
	if (!got) {
		errno = EPIPE;
		return -1;
	}
	for (ssize_t i = 0; i < got; i++)
		*wrong += piece[i] != pattern(at + i);
	return got;
}

/* 0, or an errno. */
static int echo(int fd, size_t bytes, size_t *received, size_t *wrong)
{
	size_t sent = 0;

	while (*received < bytes) {
		struct pollfd wait = { .fd = fd, .events = POLLIN };
		ssize_t done;

		if (sent < bytes)
			wait.events |= POLLOUT;
		if (poll(&wait, 1, PATIENCE_MS) <= 0)
			return ETIMEDOUT;
		done = sent < bytes ? send_some(fd, sent, bytes) : 0;
		if (done < 0)
			return errno;
		sent += done;
		done = receive_some(fd, *received, wrong);
		if (done < 0)
			return errno;
		*received += done;
	}
	return 0;
}

/* One item; 0 with its completion, or an errno. */
static int launch(int fd, struct vgpu_completion *completion)
{
	struct vgpu_desc desc = descriptor_launch(1000);
	struct vgpu_guest_submit submit = { .descs = (uintptr_t)&desc, .count = 1 };
	struct vgpu_guest_wait wait = {
		.completions = (uintptr_t)completion,
		.capacity = 1,
		.minimum = 1,
		.timeout_ms = PATIENCE_MS,
	};

	desc.arg[1] = htole32(23);
	if (ioctl(fd, VGPU_GUEST_SUBMIT, &submit) || ioctl(fd, VGPU_GUEST_WAIT, &wait))
		return errno;
	return 0;
}

int channel_echo(const char *path, size_t bytes, bool json)
{
	int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	struct vgpu_completion completion = { 0 };
	size_t received = 0, wrong = 0;
	struct report report;
	bool right;
	int error;

	if (fd < 0) {
		fprintf(stderr, "vgpu-guest: opening %s: %s\n", path, strerror(errno));
		return EXIT_DEVICE;
	}
	error = echo(fd, bytes, &received, &wrong);
	if (!error)
		error = launch(fd, &completion);
	close(fd);
	right = !error && !wrong && !completion.status &&
		le64toh(completion.result) == 1023;
	report_begin(&report, json);
	report_text(&report, "record", "channel");
	report_u64(&report, "received", received);
	report_u64(&report, "wrong", wrong);
	report_u64(&report, "launch_status", le32toh(completion.status));
	report_u64(&report, "launch_result", le64toh(completion.result));
	report_text(&report, "error", error ? strerror(error) : "");
	report_bool(&report, "right", right);
	report_end(&report);
	return right ? EXIT_OK : EXIT_WRONG;
}
