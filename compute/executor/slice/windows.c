// SPDX-License-Identifier: Apache-2.0
/*
 * The state of each window.  The module reports what the guest does with a window, and the
 * supervisor reports the state of the window's child.  This file passes each side's events to the
 * other.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/header.h"
#include "executor/log.h"
#include "executor/slice/slice.h"

/* Limit for new processes of the guest: ten per second, and a burst of twice the number of windows. */
#define START_INTERVAL_NS	100000000ull
#define SECOND_NS	1000000000ull
/* Initial and maximum delay before a notification that the module rejected is repeated. */
#define RETRY_NS	1000000ull
#define RETRY_MAX_NS	256000000ull

void windows_init(struct slice *slice, uint64_t now_ns)
{
	vgpu_rate_open(&slice->starts, START_INTERVAL_NS, 2 * slice->window_count, now_ns);
	for (unsigned int i = 0; i < VGPU_WINDOWS_MAX; i++)
		slice->windows[i] = (struct window){ .memory = -1, .patience_ns = UINT64_MAX };
}

/* Tells the module that no process of a window's child is left. */
static void leave(struct slice *slice, struct window *window, uint64_t now_ns)
{
	unsigned int number = (unsigned int)(window - slice->windows);
	bool taken = window->closing ? module_closed(slice, number) : module_lost(slice, number);

	if (taken) {
		*window = (struct window){ .memory = -1, .patience_ns = UINT64_MAX };
		return;
	}
	window->again_ns = now_ns + window->wait_ns;
	if (window->wait_ns == RETRY_MAX_NS)
		return;
	window->wait_ns *= 2;
	if (window->wait_ns == RETRY_MAX_NS)
		slice_note(slice, LOG_WARNING, "window=%u event=window.held a process still has its memory", number);
}

/* Releases a window whose child has ended or never existed. */
static void let_go(struct slice *slice, struct window *window, uint64_t now_ns)
{
	if (window->memory >= 0)
		close(window->memory);
	*window = (struct window){
		.state = WINDOW_LEAVING, .closing = window->closing, .memory = -1,
		.patience_ns = UINT64_MAX, .wait_ns = RETRY_NS,
	};
	leave(slice, window, now_ns);
}

static void refuse(struct slice *slice, unsigned int number, int memory, const char *reason, uint64_t now_ns)
{
	slice_note(slice, LOG_NOTICE, "window=%u event=window.refused %s", number, reason);
	vgpu_header_lose(memory, reason);
	slice->windows[number].memory = memory;
	let_go(slice, &slice->windows[number], now_ns);
}

/*
 * Requests a child from the supervisor.  Return: false with a reason; the caller then still owns
 * @files->memory.  The caller always owns the other files.
 */
static bool start(struct slice *slice, unsigned int number, const struct vgpu_exec_window *files,
		  uint64_t now_ns, char *reason)
{
	struct window *window = &slice->windows[number];
	uint64_t wait_ns = vgpu_rate_take(&slice->starts, now_ns), sequence;
	int error;

	if (wait_ns) {
		snprintf(reason, VGPU_REASON_BYTES, "too many programs have started recently; retry in %llu s",
			 (unsigned long long)(wait_ns + SECOND_NS - 1) / SECOND_NS);
		return false;
	}
	error = vgpu_header_begin(files->memory, slice->window_bytes);
	if (error) {
		snprintf(reason, VGPU_REASON_BYTES, "its window cannot be used: %s",
			 error == EBUSY ? "its header is not empty" : strerror(error));
		return false;
	}
	sequence = children_start(slice, slice->children + 1, files);
	if (!sequence) {
		snprintf(reason, VGPU_REASON_BYTES, "the host's supervisor did not accept the child");
		return false;
	}
	*window = (struct window){
		.state = WINDOW_STARTING, .memory = files->memory, .child = ++slice->children,
		.start = sequence, .patience_ns = now_ns + SLICE_PATIENCE_NS,
	};
	return true;
}

void window_opened(struct slice *slice, unsigned int number, uint64_t now_ns)
{
	struct vgpu_exec_window files;
	char reason[VGPU_REASON_BYTES];
	int error;

	if (slice->windows[number].state != WINDOW_IDLE) {
		vgpu_log(LOG_ERR, "window=%u event=module.senseless it was opened twice", number);
		return;
	}
	error = module_files(slice, number, &files);
	/* The window has been closed meanwhile; the next event reports that. */
	if (error == ENXIO)
		return;
	if (error) {
		snprintf(reason, sizeof(reason), "its window cannot be opened: %s", strerror(error));
		refuse(slice, number, -1, reason, now_ns);
		return;
	}
	if (!start(slice, number, &files, now_ns, reason))
		refuse(slice, number, files.memory, reason, now_ns);
	close(files.lease);
	close(files.stream);
}

static void end(struct slice *slice, struct window *window, const char *reason, uint64_t now_ns)
{
	if (window->state != WINDOW_STARTING && window->state != WINDOW_RUNNING)
		return;
	window->state = WINDOW_ENDING;
	window->patience_ns = now_ns + SLICE_PATIENCE_NS;
	children_kill(slice, window->child, reason);
}

void window_closed(struct slice *slice, unsigned int number, uint64_t now_ns)
{
	struct window *window = &slice->windows[number];

	window->closing = true;
	if (window->state == WINDOW_IDLE || window->state == WINDOW_LEAVING)
		let_go(slice, window, now_ns);
	else
		end(slice, window, "the program has ended and its child was removed", now_ns);
}

void window_started(struct slice *slice, uint64_t sequence, bool done, const char *reason, uint64_t now_ns)
{
	struct window *window = slice->windows;
	char text[VGPU_REASON_BYTES];

	while (window < slice->windows + VGPU_WINDOWS_MAX && window->start != sequence)
		window++;
	if (window == slice->windows + VGPU_WINDOWS_MAX)
		return;
	window->start = 0;
	if (done && window->state == WINDOW_STARTING) {
		window->state = WINDOW_RUNNING;
		window->patience_ns = UINT64_MAX;
		slice_note(slice, LOG_INFO, "window=%u event=child.started child=%llu",
			   (unsigned int)(window - slice->windows), (unsigned long long)window->child);
	} else if (!done) {
		snprintf(text, sizeof(text), "the child did not start: %.150s", reason);
		slice_note(slice, LOG_WARNING, "window=%u event=child.failed child=%llu %s",
			   (unsigned int)(window - slice->windows), (unsigned long long)window->child, text);
		vgpu_header_lose(window->memory, text);
		let_go(slice, window, now_ns);
	}
}

void window_exited(struct slice *slice, uint64_t child, int status, const char *reason, uint64_t now_ns)
{
	struct window *window = slice->windows;
	char text[VGPU_REASON_BYTES];

	while (window < slice->windows + VGPU_WINDOWS_MAX &&
	       (window->state == WINDOW_IDLE || window->child != child))
		window++;
	if (window == slice->windows + VGPU_WINDOWS_MAX)
		return;
	vgpu_exit_text(text, status, reason);
	slice_note(slice, window->closing ? LOG_INFO : LOG_WARNING,
		   "window=%u event=child.ended child=%llu %s", (unsigned int)(window - slice->windows),
		   (unsigned long long)child, text);
	/* The supervisor has already written the reason into the window for the client. */
	let_go(slice, window, now_ns);
}

/*
 * Marks the windows of all children as lost.  Leaves closing windows to the next executor, because
 * a killed child needs a moment to end.
 */
void windows_lose(struct slice *slice, const char *reason, uint64_t now_ns)
{
	for (unsigned int i = 0; i < VGPU_WINDOWS_MAX; i++) {
		struct window *window = &slice->windows[i];

		if (window->state == WINDOW_IDLE || window->state == WINDOW_LEAVING || window->closing)
			continue;
		vgpu_header_lose(window->memory, reason);
		let_go(slice, window, now_ns);
	}
}

void windows_kill(struct slice *slice, const char *reason)
{
	for (unsigned int i = 0; i < VGPU_WINDOWS_MAX; i++)
		end(slice, &slice->windows[i], reason, 0);
}

uint64_t windows_patience_ns(const struct slice *slice)
{
	uint64_t first_ns = UINT64_MAX;

	for (unsigned int i = 0; i < VGPU_WINDOWS_MAX; i++)
		if (slice->windows[i].patience_ns < first_ns)
			first_ns = slice->windows[i].patience_ns;
	return first_ns;
}

uint64_t windows_retry(struct slice *slice, uint64_t now_ns)
{
	uint64_t first_ns = UINT64_MAX;

	for (unsigned int i = 0; i < VGPU_WINDOWS_MAX; i++) {
		struct window *window = &slice->windows[i];

		if (window->state == WINDOW_LEAVING && window->again_ns <= now_ns)
			leave(slice, window, now_ns);
		if (window->state == WINDOW_LEAVING && window->again_ns < first_ns)
			first_ns = window->again_ns;
	}
	return first_ns;
}
