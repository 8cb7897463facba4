// SPDX-License-Identifier: Apache-2.0
/* Preloaded into vgpu-executor: every file that it opens is the module's, and binding succeeds. */
#include <errno.h>
#include <stdarg.h>
#include <sys/ioctl.h>

#include "protocol/window.h"
#include "uapi/vgpu_exec.h"

int ioctl(int fd, unsigned long request, ...)
{
	struct vgpu_exec_bind *bind;
	va_list list;

	(void)fd;
	if (request != VGPU_EXEC_BIND) {
		errno = ENOTTY;
		return -1;
	}
	va_start(list, request);
	bind = va_arg(list, struct vgpu_exec_bind *);
	va_end(list);
	bind->windows = 1;
	bind->window_bytes = VGPU_WINDOW_BYTES_MIN;
	bind->memory_bytes = VGPU_WINDOW_BYTES_MIN;
	return 0;
}
