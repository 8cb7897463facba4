// SPDX-License-Identifier: GPL-2.0
/*
 * The selftests know devices by PCI address only, and pass that address to a group to get
 * the device. Ours is a mediated device, whose name is a UUID: VFIO_SELFTESTS_UUID has it.
 *
 * Linked with --wrap=ioctl.
 */
#include <stdarg.h>
#include <stdlib.h>

#include <linux/vfio.h>

int __real_ioctl(int fd, unsigned long request, void *argument);

int __wrap_ioctl(int fd, unsigned long request, ...)
{
	char *uuid = getenv("VFIO_SELFTESTS_UUID");
	void *argument;
	va_list list;

	va_start(list, request);
	argument = va_arg(list, void *);
	va_end(list);
	if (request == VFIO_GROUP_GET_DEVICE_FD && uuid)
		argument = uuid;
	return __real_ioctl(fd, request, argument);
}
