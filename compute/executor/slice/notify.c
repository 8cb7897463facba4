// SPDX-License-Identifier: Apache-2.0
/*
 * Reports the state of this process to its service manager by the protocol of sd_notify(3).
 * Sending never blocks, and nothing is sent if NOTIFY_SOCKET is not set.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/slice/slice.h"

#define STATUS_PREFIX	"STATUS="
#define STATUS_BYTES	256u
#define TELL_EVERY_NS	10000000000ull

static struct sockaddr_un address;
static socklen_t address_bytes;

void slice_notify_open(void)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t length = path ? strlen(path) : 0;

	if (length && length < sizeof(address.sun_path)) {
		address.sun_family = AF_UNIX;
		memcpy(address.sun_path, path, length);
		if (*path == '@')
			address.sun_path[0] = '\0';
		address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
	}
	/* The supervisor and its children must not send notifications. */
	unsetenv("NOTIFY_SOCKET");
}

void slice_notify(const char *text)
{
	int fd;

	if (!address_bytes)
		return;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&address, address_bytes);
	close(fd);
}

void slice_notify_serving(struct slice *slice, bool ready)
{
	const char *who = slice->enforced == VGPU_ENFORCED_GATE ? "kernel+gate" : "executor";
	char text[STATUS_BYTES];

	slice->told_until_ns = slice_now_ns() + TELL_EVERY_NS;
	snprintf(text, sizeof(text),
		 "%sSTATUS=serving the slice; enforced_by=%s gate_p99_us=%llu memory_used_bytes=%llu memory_bytes=%llu",
		 ready ? "READY=1\n" : "", who, (unsigned long long)slice->gate_ns / 1000,
		 (unsigned long long)slice->memory_used_bytes, (unsigned long long)slice->memory_bytes);
	slice_notify(text);
}

void slice_fail(const char *event, const char *format, ...)
{
	char status[STATUS_BYTES] = STATUS_PREFIX;
	char *reason = status + strlen(STATUS_PREFIX);
	va_list list;

	va_start(list, format);
	vsnprintf(reason, sizeof(status) - strlen(STATUS_PREFIX), format, list);
	va_end(list);
	vgpu_log_clean(reason, strlen(reason));
	vgpu_log(LOG_ERR, "event=%s %s", event, reason);
	slice_notify(status);
}
