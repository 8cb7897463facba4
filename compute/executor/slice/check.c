// SPDX-License-Identifier: Apache-2.0
/* --check: starts a child without the module, and ends it as soon as it would serve. */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "executor/datagram.h"
#include "executor/header.h"
#include "executor/log.h"
#include "executor/slice/slice.h"
#include "uapi/vgpu_lease_page.h"

#define WITHIN_NS	60000000000ull
/* How often to check the supervisor while waiting for the child. */
#define LOOK_NS		50000000l

struct check {
	struct vgpu_supervisor_process supervisor;
	struct vgpu_window *header;
	char reason[VGPU_REASON_BYTES];
};

/* Makes shared memory like that of an arbiter.  Return: its first page, or NULL. */
static void *make(const char *name, uint64_t bytes, int *file)
{
	void *page;

	*file = memfd_create(name, MFD_CLOEXEC);
	if (*file < 0 || ftruncate(*file, (off_t)bytes))
		return NULL;
	page = mmap(NULL, VGPU_WINDOW_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
	return page == MAP_FAILED ? NULL : page;
}

static bool fail(struct check *check, const char *what)
{
	snprintf(check->reason, sizeof(check->reason), "%s: %s", what, strerror(errno));
	return false;
}

/* Requests a child.  Files and mappings made here are released when the process ends. */
static bool start(struct check *check, const struct slice_options *options)
{
	struct vgpu_supervisor_message message = {
		.version = VGPU_CONTROL_VERSION, .op = VGPU_SUPERVISOR_START, .sequence = 1, .child = 1,
		.window_bytes = VGPU_WINDOW_BYTES_MIN,
		.memory_bytes = options->memory_bytes ? options->memory_bytes : 1ull << 30,
	};
	int fds[4] = { -1, -1, -1, -1 }, pair[2], error;
	struct vgpu_lease_page *lease = make("lease", VGPU_LEASE_PAGE_BYTES, &fds[1]);

	check->header = make("window", VGPU_WINDOW_BYTES_MIN, &fds[0]);
	if (!lease || !check->header || !make("stream", VGPU_LEASE_PAGE_BYTES, &fds[2]) ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return fail(check, "memory or descriptors");
	error = vgpu_header_begin(fds[0], VGPU_WINDOW_BYTES_MIN);
	if (error) {
		errno = error;
		return fail(check, "window");
	}
	lease->magic = VGPU_LEASE_MAGIC;
	lease->version = VGPU_LEASE_VERSION;
	fds[3] = pair[1];
	error = vgpu_datagram_send(check->supervisor.socket, &message, sizeof(message), fds, 4);
	if (error) {
		errno = -error;
		return fail(check, "the supervisor");
	}
	return true;
}

/* Return: false with a reason if the child cannot start any more. */
static bool listen_to_supervisor(struct check *check)
{
	struct vgpu_supervisor_message message;
	int got = vgpu_datagram_receive(check->supervisor.socket, &message, sizeof(message));

	if (!got || (got > 0 && (message.op == VGPU_SUPERVISOR_DONE || message.op == VGPU_SUPERVISOR_MEMORY)))
		return true;
	if (got < 0) {
		snprintf(check->reason, sizeof(check->reason), "the supervisor has ended");
		return false;
	}
	message.reason[sizeof(message.reason) - 1] = '\0';
	vgpu_log_clean(message.reason, strlen(message.reason));
	if (message.op == VGPU_SUPERVISOR_EXITED)
		vgpu_exit_text(check->reason, message.status, message.reason);
	else
		snprintf(check->reason, sizeof(check->reason), "the child did not start: %.150s", message.reason);
	return false;
}

static bool wait_for_child(struct check *check)
{
	const struct timespec look = { 0, LOOK_NS };
	uint64_t end_ns = slice_now_ns() + WITHIN_NS;
	_Atomic uint32_t *state = &check->header->child;

	while (listen_to_supervisor(check)) {
		uint32_t present = atomic_load(state);

		if (present == VGPU_CHILD_READY)
			return true;
		if (slice_now_ns() >= end_ns) {
			snprintf(check->reason, sizeof(check->reason), "the child does not serve in time");
			return false;
		}
		syscall(SYS_futex, state, FUTEX_WAIT, present, &look, NULL, 0);
	}
	return false;
}

int slice_check(const struct slice_options *options)
{
	const struct vgpu_supervisor_settings settings = {
		.program = options->supervisor, .tenant = "check", .child = options->child,
		.library = options->library, .nvidia = options->nvidia, .gate_limit_ns = options->gate_limit_ns,
	};
	struct check check = { .reason = "" };
	int error = vgpu_supervisor_start(&settings, &check.supervisor);
	bool serves;

	if (error) {
		fprintf(stderr, "vgpu-executor: %s: %s\n", options->supervisor, strerror(-error));
		return 1;
	}
	serves = start(&check, options) && wait_for_child(&check);
	children_close(&check.supervisor);
	if (serves)
		printf("a child can serve with %s\n", options->library);
	else
		fprintf(stderr, "vgpu-executor: no child can serve with %s: %s\n", options->library,
			check.reason);
	return serves ? 0 : 1;
}
