// SPDX-License-Identifier: GPL-2.0
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void append(struct report *report, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void append(struct report *report, const char *format, ...)
{
	size_t room = sizeof(report->line) - report->used;
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(report->line + report->used, room, format, args);
	va_end(args);
	if (length > 0)
		report->used += (size_t)length < room ? (size_t)length : room - 1;
}

static void key(struct report *report, const char *name)
{
	if (report->used > (report->json ? 1 : 0))
		append(report, report->json ? ", " : " ");
	append(report, report->json ? "\"%s\": " : "%s=", name);
}

void report_begin(struct report *report, bool json)
{
	report->json = json;
	report->used = 0;
	report->line[0] = '\0';
	if (json)
		append(report, "{");
}

void report_text(struct report *report, const char *name, const char *value)
{
	key(report, name);
	append(report, "\"");
	for (; *value; value++) {
		unsigned char c = *value;

		if (c == '"' || c == '\\')
			append(report, "\\%c", c);
		else if (c < 0x20)
			append(report, "\\u%04x", c);
		else
			append(report, "%c", c);
	}
	append(report, "\"");
}

void report_u64(struct report *report, const char *name, uint64_t value)
{
	key(report, name);
	append(report, "%llu", (unsigned long long)value);
}

void report_hex(struct report *report, const char *name, uint64_t value)
{
	key(report, name);
	append(report, report->json ? "\"%#llx\"" : "%#llx",
	       (unsigned long long)value);
}

void report_double(struct report *report, const char *name, double value)
{
	key(report, name);
	append(report, "%.6g", value);
}

void report_bool(struct report *report, const char *name, bool value)
{
	key(report, name);
	append(report, value ? "true" : "false");
}

void report_end(struct report *report)
{
	if (report->json)
		append(report, "}");
	append(report, "\n");
	fputs(report->line, stdout);
	fflush(stdout);
}
