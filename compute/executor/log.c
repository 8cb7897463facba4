// SPDX-License-Identifier: Apache-2.0
#include "executor/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <syslog.h>
#include <unistd.h>

static const char *prefix = "vgpu";
static int least = LOG_INFO;

static const char *const levels[] = {
	"emergency", "alert", "critical", "error", "warning", "notice", "info", "debug",
};

void vgpu_log_open(const char *text)
{
	prefix = text;
	if (getenv("VGPUMGR_DEBUG"))
		least = LOG_DEBUG;
}

void vgpu_log_list(int level, const char *format, va_list list)
{
	char line[VGPU_LOG_BYTES];
	int saved = errno, length, more;

	if (level > least)
		return;
	length = snprintf(line, sizeof(line) - 1, "%s level=%s ", prefix, levels[level & 7]);
	if (length < 0 || length > (int)sizeof(line) - 2)
		length = 0;
	errno = saved;	/* for %m */
	more = vsnprintf(line + length, sizeof(line) - 1 - (size_t)length, format, list);
	if (more > 0)
		length += more;
	if (length > (int)sizeof(line) - 2)
		length = (int)sizeof(line) - 2;
	line[length++] = '\n';
	while (write(STDERR_FILENO, line, (size_t)length) < 0 && errno == EINTR)
		;
	errno = saved;
}

void vgpu_log(int level, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vgpu_log_list(level, format, list);
	va_end(list);
}

void vgpu_log_clean(char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (text[i] < ' ' || text[i] > '~')
			text[i] = '?';
}
