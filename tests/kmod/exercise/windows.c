// SPDX-License-Identifier: GPL-2.0
#include "windows.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "exit.h"
#include "report.h"
#include "vgpu_device.h"

static const struct windows_case {
	const char *name;
	bool (*run)(struct windows_test *test);
	bool alone; /* cases that need somebody outside to act meanwhile */
} cases[] = {
	{ "memory", windows_memory, false },
	{ "again", windows_again, false },
	{ "four", windows_four, false },
	{ "full", windows_full, false },
	{ "exclusive", windows_exclusive, false },
	{ "not-inherited", windows_not_inherited, false },
	{ "mappings", windows_mappings, false },
	{ "waiting", windows_waiting, false },
	{ "here", windows_here, false },
	{ "echo", windows_echo, false },
	{ "rung", windows_rung, false },
	{ "lost", windows_lost, false },
	{ "hold", windows_hold, true },
	{ "patience", windows_patience, true },
};

static const size_t case_count = sizeof(cases) / sizeof(cases[0]);

bool windows_fail(struct windows_test *test, const char *format, ...)
{
	va_list args;

	if (*test->why)
		return false;
	va_start(args, format);
	vsnprintf(test->why, sizeof(test->why), format, args);
	va_end(args);
	return false;
}

bool windows_expect(struct windows_test *test, const char *call, int rc, int expected)
{
	if (rc == expected)
		return true;
	return windows_fail(test, "%s: %s (%d) instead of %s (%d)", call, strerror(-rc), -rc,
			    strerror(-expected), -expected);
}

bool windows_open(struct windows_test *test, struct window *window)
{
	return windows_expect(test, "open", window_open(window, test->path, 0), 0);
}

int windows_open_all(struct windows_test *test, struct window *windows)
{
	int count = 0;

	while (count < VGPU_WINDOWS_MAX && windows_open(test, &windows[count]))
		count++;
	return count;
}

void windows_close_all(struct window *windows, int count)
{
	while (count--)
		window_close(&windows[count]);
}

void windows_say(const struct windows_test *test, const char *what, uint64_t value)
{
	struct report report;

	report_begin(&report, test->json);
	report_text(&report, "record", what);
	report_u64(&report, "value", value);
	report_end(&report);
}

static bool run_case(const struct windows_case *one, const char *path, bool json)
{
	struct windows_test test = { .path = path, .json = json };
	struct report report;
	bool right = one->run(&test);

	report_begin(&report, json);
	report_text(&report, "record", "windows");
	report_text(&report, "case", one->name);
	report_bool(&report, "ok", right);
	if (!right)
		report_text(&report, "message", test.why);
	report_end(&report);
	return right;
}

int windows_run(const char *path, const char *name, bool json)
{
	bool every = !strcmp(name, "all"), found = false, right = true;

	for (size_t i = 0; i < case_count; i++) {
		if (every && cases[i].alone)
			continue;
		if (!every && strcmp(name, cases[i].name))
			continue;
		found = true;
		right &= run_case(&cases[i], path, json);
	}
	if (!found)
		return -1;
	return right ? EXIT_OK : EXIT_WRONG;
}

void windows_list(void)
{
	for (size_t i = 0; i < case_count; i++)
		printf("%s\n", cases[i].name);
}
