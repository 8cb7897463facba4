// SPDX-License-Identifier: Apache-2.0
/*
 * The log. Its file is opened for each line: records are few, and a tenant that closes all files it
 * does not know would otherwise get our lines into one of its own.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void record(const char *event, const char *format, ...)
{
	const char *path = settings_log_path();
	struct timespec now = { 0 };
	char members[512], line[640];
	int saved = errno;
	va_list arguments;
	int fd, size;

	if (path == NULL)
		return;
	va_start(arguments, format);
	vsnprintf(members, sizeof(members), format, arguments);
	va_end(arguments);
	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	size = snprintf(line, sizeof(line), "{\"t_ns\":%lld,\"pid\":%d,\"event\":\"%s\",%s}\n",
			(long long)now.tv_sec * 1000000000 + now.tv_nsec, (int)getpid(), event, members);

	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (fd >= 0) {
		/* A log that is full or gone must not disturb the tenant. */
		if (write(fd, line, (size_t)size) < 0)
			size = 0;
		close(fd);
	}
	errno = saved;
}
