// SPDX-License-Identifier: Apache-2.0
/*
 * The words are changed by the futex calls themselves: the kernel makes the access,
 * and where the page is gone (a window of a VM after a reset) the call fails instead
 * of killing the supervisor.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "executor/supervisor/supervisor.h"
#include "protocol/window.h"

/* Changes @word, then wakes all who wait for it. */
static void change(_Atomic uint32_t *word, int operation, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAKE_OP, INT_MAX, (void *)0, word,
		FUTEX_OP(operation, (int)value, FUTEX_OP_CMP_EQ, 0));
}

void vgpu_mark_lost(int window)
{
	struct vgpu_window *header;

	if (window < 0)
		return;
	header = mmap(NULL, VGPU_WINDOW_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, window, 0);
	if (header == MAP_FAILED)
		return;
	change(&header->child, FUTEX_OP_SET, VGPU_CHILD_LOST);
	/* Who is about to wait must find another value. */
	change(&header->reply.bell, FUTEX_OP_ADD, 1);
	change(&header->request.space, FUTEX_OP_ADD, 1);
	munmap(header, VGPU_WINDOW_PAGE);
}
