// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/priority.h"
#include "executor/slice/slice.h"

enum status {
	STATUS_ENDED = 0,
	STATUS_FAILED = 1,
};

uint64_t slice_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void slice_stop(struct slice *slice, enum slice_end end)
{
	if (slice->end == SLICE_GOES_ON)
		slice->end = end;
}

void slice_note(struct slice *slice, int level, const char *format, ...)
{
	va_list list;

	if (!vgpu_notice_may(&slice->notice, slice_now_ns()))
		return;
	va_start(list, format);
	vgpu_log_list(level, format, list);
	va_end(list);
}

static void tell_left_out(struct slice *slice, uint64_t now_ns)
{
	uint64_t left_out = vgpu_notice_take(&slice->notice, now_ns);

	if (left_out)
		vgpu_log(LOG_NOTICE, "event=lines.left_out count=%llu", (unsigned long long)left_out);
}

static int watch_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Return: when to give up the supervisor if it has not answered. */
static uint64_t patience_ns(const struct slice *slice)
{
	uint64_t windows_ns = windows_patience_ns(slice);

	if (slice->supervisor.socket < 0)
		return UINT64_MAX;
	return windows_ns < slice->hello_by_ns ? windows_ns : slice->hello_by_ns;
}

/* Return: the timeout for poll(), rounded up so that the next deadline has passed when poll() returns. */
static int timeout_ms(struct slice *slice, uint64_t now_ns)
{
	uint64_t due_ns = patience_ns(slice), notice_ns = vgpu_notice_due_ns(&slice->notice);
	uint64_t retry_ns = windows_retry(slice, now_ns);

	if (notice_ns < due_ns)
		due_ns = notice_ns;
	if (retry_ns < due_ns)
		due_ns = retry_ns;
	if (due_ns == UINT64_MAX)
		return -1;
	return due_ns > now_ns ? (int)((due_ns - now_ns + 999999) / 1000000) : 0;
}

static void run(struct slice *slice, int signals)
{
	enum { SIGNALS, SUPERVISOR, PROCESS, MODULE };

	while (slice->end == SLICE_GOES_ON) {
		struct pollfd files[] = {
			[SIGNALS] = { signals, POLLIN, 0 },
			[SUPERVISOR] = { slice->supervisor.socket, POLLIN, 0 },
			[PROCESS] = { slice->supervisor.pidfd, POLLIN, 0 },
			/* Ignore the module until the supervisor has answered. */
			[MODULE] = { slice->hello ? -1 : slice->module, POLLIN, 0 },
		};
		uint64_t now_ns;

		if (poll(files, 4, timeout_ms(slice, slice_now_ns())) < 0)
			continue;
		if (files[SIGNALS].revents)
			slice_stop(slice, SLICE_STOPPED);
		/* Process the supervisor's last messages before its end. */
		if (files[SUPERVISOR].revents)
			children_receive(slice);
		else if (files[PROCESS].revents)
			children_died(slice);
		if (files[MODULE].revents && slice->end == SLICE_GOES_ON)
			module_receive(slice);
		now_ns = slice_now_ns();
		if (patience_ns(slice) <= now_ns) {
			slice_fail("supervisor.silent", "the supervisor does not answer");
			children_give_up(slice);
		}
		tell_left_out(slice, now_ns);
	}
}

static int end(struct slice *slice)
{
	static const char *const reasons[] = {
		[SLICE_STOPPED] = "the host's executor was stopped",
		[SLICE_GONE] = "the slice was removed, or has another executor",
		[SLICE_FAILED] = "the host's executor has failed",
	};

	slice_notify("STOPPING=1");
	vgpu_log(slice->end == SLICE_FAILED ? LOG_ERR : LOG_INFO, "event=ending %s", reasons[slice->end]);
	windows_kill(slice, reasons[slice->end]);
	children_close(&slice->supervisor);
	vgpu_log(LOG_INFO, "event=ended");
	return slice->end == SLICE_FAILED ? STATUS_FAILED : STATUS_ENDED;
}

int main(int argc, char **argv)
{
	static struct slice slice = { .module = -1, .supervisor = { .pidfd = -1, .socket = -1 } };
	static char prefix[80];
	int signals, error;

	slice_read_options(&slice.options, argc, argv);
	if (slice.options.check)
		return slice_check(&slice.options);
	snprintf(prefix, sizeof(prefix), "vgpu-executor slice=%s", slice.options.slice);
	vgpu_log_open(prefix);
	slice_notify_open();
	signals = watch_signals();
	if (signals < 0) {
		slice_fail("signals.failed", "%s", strerror(errno));
		return STATUS_FAILED;
	}
	error = vgpu_priority_raise();
	if (error)
		vgpu_log(LOG_NOTICE, "event=priority.ordinary the gate is slow while all processors are busy: %s",
			 strerror(-error));
	if (!module_open(&slice) || !children_open(&slice))
		return STATUS_FAILED;
	windows_init(&slice, slice_now_ns());
	run(&slice, signals);
	return end(&slice);
}
