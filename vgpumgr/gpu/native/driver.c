// SPDX-License-Identifier: Apache-2.0
/* The version of the process's driver, learnt from libcuda's own version check. */
#define _GNU_SOURCE
#include "shim.h"

#include "rm_abi.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum knowledge { UNASKED, KNOWN, UNKNOWN };

static _Atomic int knowledge = UNASKED;

/*
 * A version has only digits and dots. Any other text is an unknown driver, and stays out of the
 * log.
 */
void driver_learn(const char *text, size_t size)
{
	char version[sizeof(((struct rm_version *)0)->text)];
	size_t length = 0;
	unsigned long major;
	int now, before;

	while (length < size && length + 1 < sizeof(version) &&
	       (isdigit((unsigned char)text[length]) || text[length] == '.'))
		length++;
	memcpy(version, text, length);
	version[length] = '\0';

	major = strtoul(version, NULL, 10);
	now = major >= RM_MAJOR_FIRST && major <= RM_MAJOR_LAST ? KNOWN : UNKNOWN;
	before = atomic_exchange(&knowledge, now);
	if (before != now)
		record("driver", "\"version\":\"%s\",\"known\":%s", version, now == KNOWN ? "true" : "false");
}

static void ask_the_module(void)
{
	char text[64];
	int saved = errno;
	int fd = open("/sys/module/nvidia/version", O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof(text));

	if (fd >= 0)
		close(fd);
	errno = saved;
	driver_learn(text, size > 0 ? (size_t)size : 0);
}

bool driver_is_known(void)
{
	if (atomic_load(&knowledge) == UNASKED)
		ask_the_module();
	return atomic_load(&knowledge) == KNOWN;
}
