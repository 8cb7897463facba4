// SPDX-License-Identifier: GPL-2.0
#include "window.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vgpu_guest.h"

int window_open(struct window *window, const char *path, int flags)
{
	struct vgpu_guest_window info;
	void *memory;
	int error;

	window->fd = open(path, O_RDWR | O_CLOEXEC | flags);
	if (window->fd < 0)
		return -errno;
	if (ioctl(window->fd, VGPU_GUEST_WINDOW_INFO, &info)) {
		error = errno;
		close(window->fd);
		return -error;
	}
	memory = mmap(NULL, info.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, window->fd, 0);
	if (memory == MAP_FAILED) {
		error = errno;
		close(window->fd);
		return -error;
	}
	window->number = info.number;
	window->bytes = info.bytes;
	window->words = memory;
	return 0;
}

void window_close(struct window *window)
{
	munmap((void *)window->words, window->bytes);
	close(window->fd);
}

static uint64_t step(const struct window *window, uint64_t at)
{
	return at < 4096 || at >= window->bytes - 4096 ? 4 : 4096;
}

void window_fill(const struct window *window, uint32_t value)
{
	for (uint64_t at = 0; at < window->bytes; at += step(window, at))
		window_set_word(window, at, value);
}

bool window_is_filled(const struct window *window, uint32_t value)
{
	for (uint64_t at = 0; at < window->bytes; at += step(window, at))
		if (window_word(window, at) != value)
			return false;
	return true;
}

int window_wait(const struct window *window, uint32_t offset, uint32_t value,
		uint64_t timeout_ns)
{
	struct vgpu_guest_window_wait wait = {
		.offset = offset,
		.value = value,
		.timeout_ns = timeout_ns,
	};

	return ioctl(window->fd, VGPU_GUEST_WINDOW_WAIT, &wait) ? -errno : 0;
}

int window_ring(const struct window *window)
{
	return ioctl(window->fd, VGPU_GUEST_WINDOW_RING) ? -errno : 0;
}

int window_info(const struct window *window)
{
	struct vgpu_guest_window info;

	return ioctl(window->fd, VGPU_GUEST_WINDOW_INFO, &info) ? -errno : 0;
}

int window_events(const struct window *window)
{
	struct pollfd wanted = { .fd = window->fd, .events = POLLIN };

	return poll(&wanted, 1, 0) < 0 ? -errno : wanted.revents;
}
