// SPDX-License-Identifier: Apache-2.0
/*
 * The log. Its file is opened for each line, which is cheap because records are few. A file that
 * stayed open could be closed by a tenant that closes all files it does not know; our lines would
 * then end up in one of the tenant's own files. A file that is too large, or a pipe without a
 * reader, must not end the tenant by a signal.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/*
 * Writes and suppresses the signals that a write can raise. Signals that were pending before stay
 * pending.
 */
static void write_quietly(int fd, const char *line, size_t size)
{
	static const int raised[] = { SIGXFSZ, SIGPIPE };
	const struct timespec at_once = { 0 };
	sigset_t quiet, before, pending;

	sigemptyset(&quiet);
	for (size_t i = 0; i < sizeof(raised) / sizeof(*raised); i++)
		sigaddset(&quiet, raised[i]);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &quiet, &before);
	if (write(fd, line, size) < 0 && (errno == EFBIG || errno == EPIPE)) {
		int signal = errno == EFBIG ? SIGXFSZ : SIGPIPE;
		sigset_t one;

		sigemptyset(&one);
		sigaddset(&one, signal);
		if (!sigismember(&pending, signal))
			sigtimedwait(&one, NULL, &at_once);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

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
		write_quietly(fd, line, (size_t)size);
		close(fd);
	}
	errno = saved;
}
