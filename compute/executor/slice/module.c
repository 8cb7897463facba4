// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/slice/slice.h"
#include "protocol/window.h"

static const char *bind_problem(int error)
{
	switch (error) {
	case ENOENT:
		return "there is no such slice";
	case EBUSY:
		return "the slice already has an executor";
	case EOPNOTSUPP:
		return "the slice's engine is not `lease`";
	case ENODEV:
		return "the slice is being removed";
	case EINVAL:
		return "this is not the UUID of a slice";
	case ENOTTY:
		return "the module has another version";
	default:
		return strerror(error);
	}
}

bool module_open(struct slice *slice)
{
	struct vgpu_exec_bind bind = { 0 };

	memcpy(bind.uuid, slice->options.slice, strlen(slice->options.slice));
	slice->module = open(slice->options.device, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (slice->module < 0) {
		slice_fail("module.failed", "%s: %s", slice->options.device, strerror(errno));
		return false;
	}
	if (ioctl(slice->module, VGPU_EXEC_BIND, &bind)) {
		slice_fail("module.failed", "%s", bind_problem(errno));
		return false;
	}
	if (!bind.windows || bind.windows > VGPU_WINDOWS_MAX || bind.window_bytes < VGPU_WINDOW_BYTES_MIN ||
	    bind.window_bytes > VGPU_WINDOW_BYTES_MAX || bind.window_bytes % VGPU_WINDOW_PAGE) {
		slice_fail("module.failed", "%u windows of %llu bytes are not possible", bind.windows,
			   (unsigned long long)bind.window_bytes);
		return false;
	}
	slice->window_count = bind.windows;
	slice->window_bytes = bind.window_bytes;
	slice->memory_bytes = slice->options.memory_bytes ? slice->options.memory_bytes : bind.memory_bytes;
	return true;
}

/*
 * Handles an error of the module.  The slice may be gone (ENODEV), or the guest may have closed the
 * window (ENXIO).
 */
static void note_error(struct slice *slice, const char *what, int error)
{
	if (error == ENXIO)
		return;
	if (error == ENODEV) {
		slice_stop(slice, SLICE_GONE);
		return;
	}
	slice_fail("module.failed", "%s: %s", what, strerror(error));
	slice_stop(slice, SLICE_FAILED);
}

static void handle(struct slice *slice, const struct vgpu_exec_event *event)
{
	switch (event->kind) {
	case VGPU_EXEC_GATE_CLOSE:
	case VGPU_EXEC_GATE_OPEN:
		children_gate(slice, event->sequence, event->kind == VGPU_EXEC_GATE_CLOSE);
		return;
	case VGPU_EXEC_WINDOW_OPENED:
	case VGPU_EXEC_WINDOW_CLOSED:
		if (event->window >= slice->window_count)
			break;
		if (event->kind == VGPU_EXEC_WINDOW_OPENED)
			window_opened(slice, event->window, slice_now_ns());
		else
			window_closed(slice, event->window, slice_now_ns());
		return;
	}
	slice_fail("module.senseless", "kind=%u window=%u", event->kind, event->window);
	slice_stop(slice, SLICE_FAILED);
}

void module_receive(struct slice *slice)
{
	struct vgpu_exec_event event;
	ssize_t got = read(slice->module, &event, sizeof(event));

	if (got == sizeof(event))
		handle(slice, &event);
	else if (got >= 0)
		note_error(slice, "read", EIO);
	else if (errno != EAGAIN && errno != EINTR)
		note_error(slice, "read", errno);
}

int module_files(struct slice *slice, unsigned int number, struct vgpu_exec_window *files)
{
	*files = (struct vgpu_exec_window){ .window = number, .memory = -1, .lease = -1, .stream = -1 };
	if (!ioctl(slice->module, VGPU_EXEC_WINDOW, files))
		return 0;
	if (errno == ENODEV)
		slice_stop(slice, SLICE_GONE);
	return errno;
}

static bool tell(struct slice *slice, unsigned int number, unsigned long request, const char *what)
{
	const struct vgpu_exec_child child = { .window = number };

	if (!ioctl(slice->module, request, &child))
		return true;
	if (errno == EBUSY)
		return false;
	note_error(slice, what, errno);
	return true;
}

bool module_lost(struct slice *slice, unsigned int number)
{
	return tell(slice, number, VGPU_EXEC_LOST, "VGPU_EXEC_LOST");
}

bool module_closed(struct slice *slice, unsigned int number)
{
	return tell(slice, number, VGPU_EXEC_CLOSED, "VGPU_EXEC_CLOSED");
}

void module_gate(struct slice *slice, uint64_t sequence, uint64_t processor_ns, bool done)
{
	const struct vgpu_exec_gate gate = {
		.sequence = sequence, .processor_ns = processor_ns, .done = done,
	};

	if (ioctl(slice->module, VGPU_EXEC_GATE, &gate))
		note_error(slice, "VGPU_EXEC_GATE", errno);
}
