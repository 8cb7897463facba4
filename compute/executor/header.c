// SPDX-License-Identifier: Apache-2.0
#include "executor/header.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/control.h"

_Static_assert(VGPU_WINDOW_REASON_BYTES == VGPU_REASON_BYTES, "a reason fits");
_Static_assert(VGPU_WINDOW_PAGE <= PIPE_BUF, "a header goes through a pipe at once");

static struct vgpu_window *map(int window)
{
	void *header = mmap(NULL, VGPU_WINDOW_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, window, 0);

	return header == MAP_FAILED ? NULL : header;
}

/* Copies at most a page to or from a header, through a pipe. */
static int carry(void *to, const void *from, size_t bytes)
{
	int pipe[2], error = 0;

	if (pipe2(pipe, O_CLOEXEC))
		return errno;
	if (write(pipe[1], from, bytes) != (ssize_t)bytes || read(pipe[0], to, bytes) != (ssize_t)bytes)
		error = errno;
	close(pipe[0]);
	close(pipe[1]);
	return error;
}

int vgpu_header_begin(int window, uint64_t bytes)
{
	static const unsigned char empty[VGPU_WINDOW_PAGE];
	unsigned char present[VGPU_WINDOW_PAGE];
	const struct vgpu_window begun = {
		.magic = VGPU_WINDOW_MAGIC, .version = VGPU_WINDOW_VERSION, .bytes = bytes,
	};
	struct vgpu_window *header = map(window);
	int error;

	if (!header)
		return errno;
	error = carry(present, header, sizeof(present));
	if (!error && memcmp(present, empty, sizeof(empty)))
		error = EBUSY;
	/* The state is VGPU_CHILD_STARTING, which is zero like all fields after it. */
	if (!error)
		error = carry(header, &begun, offsetof(struct vgpu_window, child));
	munmap(header, VGPU_WINDOW_PAGE);
	return error;
}

/*
 * Changes a word, then wakes all clients of the broker that wait on it.  The wake has no effect in
 * a window of a VM, where the kernel module wakes the guest.
 */
static void change(_Atomic uint32_t *word, int operation, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAKE_OP, INT_MAX, (void *)0, word,
		FUTEX_OP(operation, (int)value, FUTEX_OP_CMP_EQ, 0));
}

void vgpu_header_lose(int window, const char *reason)
{
	const uint32_t lost = VGPU_CHILD_LOST;
	char text[VGPU_WINDOW_REASON_BYTES] = "";
	struct vgpu_window *header = window < 0 ? NULL : map(window);

	if (!header)
		return;
	snprintf(text, sizeof(text), "%s", reason);
	carry(header->reason, text, sizeof(text));
	carry(&header->child, &lost, sizeof(lost));
	change(&header->child, FUTEX_OP_SET, lost);
	/* Change both words, so that a client that is about to wait sees a new value and does not sleep. */
	change(&header->reply.bell, FUTEX_OP_ADD, 1);
	change(&header->request.space, FUTEX_OP_ADD, 1);
	munmap(header, VGPU_WINDOW_PAGE);
}

void vgpu_exit_text(char *text, int status, const char *reason)
{
	if (WIFSIGNALED(status))
		snprintf(text, VGPU_REASON_BYTES, "the child was ended by signal %d%s%.120s", WTERMSIG(status),
			 *reason ? ": " : "", reason);
	else
		snprintf(text, VGPU_REASON_BYTES, "the child exited with status %d%s%.120s",
			 WEXITSTATUS(status), *reason ? ": " : "", reason);
}
