// SPDX-License-Identifier: Apache-2.0
/* The device of a virtual machine.  The child runs on the VM's host (kmod/uapi/vgpu_guest.h). */
#include "guest/transport/connection.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "uapi/vgpu_guest.h"

/*
 * How long to wait until a child serves.  In this time the host starts a process, which loads the
 * accelerator's library.
 */
#define SERVED_WITHIN_NS 30000000000ull

static bool wait_on(int fd, const _Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
	struct vgpu_guest_window_wait wait = {
		.offset = (uint32_t)((uintptr_t)word - (uintptr_t)vgpu_connection.window),
		.value = value,
		.timeout_ns = ns,
	};

	return !ioctl(fd, VGPU_GUEST_WINDOW_WAIT, &wait) || (errno != EPIPE && errno != ENODEV);
}

static bool wait_for_word(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
	return wait_on(vgpu_connection.fd, word, value, ns);
}

static void wake(_Atomic uint32_t *word)
{
	(void)word;
	/* If this call fails, the window is lost.  Every waiting thread notices that by itself. */
	ioctl(vgpu_connection.fd, VGPU_GUEST_WINDOW_RING);
}

static bool has_ended(void)
{
	struct pollfd end = { vgpu_connection.fd, 0, 0 };

	return poll(&end, 1, 0) == 1;
}

/*
 * Copies the reason with system calls: after a reset, an access by this process would raise
 * SIGBUS.  Returns false if the window is gone.
 */
static bool copy_reason(char reason[VGPU_WINDOW_REASON_BYTES])
{
	const char *from = vgpu_connection.window->reason;
	int pipe[2];
	bool gone;

	*reason = 0;
	if (pipe2(pipe, O_CLOEXEC))
		return true;
	gone = write(pipe[1], from, VGPU_WINDOW_REASON_BYTES) < 0 && errno == EFAULT;
	if (gone || read(pipe[0], reason, VGPU_WINDOW_REASON_BYTES) != (ssize_t)VGPU_WINDOW_REASON_BYTES)
		*reason = 0;
	close(pipe[0]);
	close(pipe[1]);
	vgpu_make_printable(reason, VGPU_WINDOW_REASON_BYTES);
	return !gone;
}

/*
 * If the window is gone, replaces this library's own part of it by ordinary memory.  Threads that
 * read the rings then see a lost device instead of a signal.  Buffers in the bulk area are not
 * replaced, because the program would take the zeros for its data.
 */
static void leave(char reason[VGPU_WINDOW_REASON_BYTES])
{
	if (copy_reason(reason))
		return;
	mmap(vgpu_connection.window, VGPU_WINDOW_BULK, PROT_READ | PROT_WRITE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	strcpy(reason, "the virtual device was reset or removed");
}

static const struct vgpu_carrier carrier = {
	.wait = wait_for_word,
	.wake = wake,
	.has_ended = has_ended,
	.leave = leave,
};

/* Returns the number in a name like vgpu12-compute, or -1. */
static long number_of(const char *name)
{
	static const char before[] = "vgpu", after[] = "-compute";
	size_t digits;

	if (strncmp(name, before, strlen(before)))
		return -1;
	name += strlen(before);
	digits = strspn(name, "0123456789");
	return digits && digits < 10 && !strcmp(name + digits, after) ? strtol(name, NULL, 10) : -1;
}

bool vgpu_device_find(const char *directory, char *path, size_t bytes)
{
	DIR *devices = opendir(directory);
	struct dirent *entry;
	long lowest = -1;

	while (devices && (entry = readdir(devices))) {
		long number = number_of(entry->d_name);

		if (number < 0 || (lowest >= 0 && number >= lowest))
			continue;
		if ((size_t)snprintf(path, bytes, "%s/%s", directory, entry->d_name) < bytes)
			lowest = number;
	}
	if (devices)
		closedir(devices);
	return lowest >= 0;
}

const char *vgpu_device_problem(int error)
{
	switch (error) {
	case ENOSPC:
		return "as many programs use it as it has windows for";
	case ENODEV:
	case ENXIO:
		return "the device is gone";
	case EPIPE:
		return "the device was reset";
	case ENOTTY:
		return "this is no compute device of vgpumgr";
	case EPROTO:
		return "the host's vgpumgr is of another version";
	case ETIMEDOUT:
		return "the host has not started a process for this program in time";
	default:
		return strerror(error);
	}
}

static int refused(void)
{
	char reason[VGPU_WINDOW_REASON_BYTES];

	leave(reason);
	fprintf(stderr, "vgpumgr: refused: %s\n", *reason ? reason : "the host has no process for this program");
	return -ECONNREFUSED;
}

/*
 * Waits until a child serves, because nothing in the window may be used before.  Returns 0 or a
 * negative error number.
 */
static int wait_for_child(int fd)
{
	_Atomic uint32_t *child = &vgpu_connection.window->child;
	uint64_t end_ns = vgpu_now_ns() + SERVED_WITHIN_NS;

	for (;;) {
		uint32_t state = atomic_load_explicit(child, memory_order_acquire);
		uint64_t now_ns = vgpu_now_ns();

		if (state == VGPU_CHILD_READY)
			return vgpu_window_fits() ? 0 : -EPROTO;
		if (state == VGPU_CHILD_LOST)
			return refused();
		if (now_ns >= end_ns)
			return -ETIMEDOUT;
		if (!wait_on(fd, child, state, end_ns - now_ns))
			return refused();
	}
}

static int map(int fd)
{
	struct vgpu_guest_window window = { 0 };
	int error;

	if (ioctl(fd, VGPU_GUEST_WINDOW_INFO, &window))
		return -errno;
	error = vgpu_window_map(fd, window.bytes);
	if (error)
		return error;
	error = wait_for_child(fd);
	if (error)
		vgpu_window_unmap();
	return error;
}

int vgpu_device_connect(const char *path)
{
	char found[sizeof("/dev/") + NAME_MAX];
	int fd, error;

	if (!path) {
		if (!vgpu_device_find("/dev", found, sizeof(found)))
			return -ENOENT;
		path = found;
	}
	do
		fd = open(path, O_RDWR | O_CLOEXEC);
	while (fd < 0 && errno == EINTR);
	error = fd < 0 ? -errno : map(fd);
	if (error) {
		if (fd >= 0)
			close(fd);
		if (error != -ECONNREFUSED)
			fprintf(stderr, "vgpumgr: %s: %s\n", path, vgpu_device_problem(-error));
		return error;
	}
	vgpu_connection.carrier = &carrier;
	vgpu_connection.fd = fd;
	return 0;
}
