// SPDX-License-Identifier: GPL-2.0
/* Cases about wakeups, and about the end of a window. */
#include "windows.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "clock.h"
#include "vgpu_device.h"
#include "vgpu_guest.h"

#define NAP_NS (100 * NS_PER_MS)
#define TICK_US 50000
/* So many that a call which checks only once a second takes too long for any test. */
#define ROUNDS 600

/* Tell the child what to do, without waiting for it. */
static int command(const struct window *window, enum windows_command what)
{
	window_set_word(window, WINDOWS_COMMAND, what);
	__sync_synchronize();
	window_set_word(window, WINDOWS_REQUEST, window_word(window, WINDOWS_REQUEST) + 1);
	return window_ring(window);
}

/* Wait until the child has answered; 0 or a negative errno. */
static int answered(const struct window *window)
{
	uint32_t request = window_word(window, WINDOWS_REQUEST), answer;
	int rc = 0;

	while (!rc && (answer = window_word(window, WINDOWS_ANSWER)) != request)
		rc = window_wait(window, WINDOWS_ANSWER, answer, WINDOW_FOREVER);
	return rc;
}

bool windows_echo(struct windows_test *test)
{
	struct window window;
	bool right = true;

	if (!windows_open(test, &window))
		return false;
	for (int i = 0; right && i < ROUNDS; i++)
		right = windows_expect(test, "RING", command(&window, WINDOWS_ECHO), 0) &&
			windows_expect(test, "WAIT", answered(&window), 0);
	window_close(&window);
	return right;
}

static void on_signal(int number)
{
	(void)number;
}

/* A repeated SIGALRM, so that one comes while a call waits. */
static void tick(int every_us)
{
	struct itimerval timer = {
		.it_interval.tv_usec = every_us,
		.it_value.tv_usec = every_us,
	};
	struct sigaction action = { .sa_handler = on_signal };

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

bool windows_waiting(struct windows_test *test)
{
	struct window window;
	bool right;

	if (!windows_open(test, &window))
		return false;
	right = windows_expect(test, "WAIT between two words",
			       window_wait(&window, WINDOWS_FREE + 2, 0, 0), -EINVAL) &&
		windows_expect(test, "WAIT beyond the end",
			       window_wait(&window, window.bytes, 0, 0), -EINVAL) &&
		windows_expect(test, "WAIT for another word",
			       window_wait(&window, WINDOWS_FREE, 1, WINDOW_FOREVER), 0) &&
		windows_expect(test, "WAIT that only looks",
			       window_wait(&window, WINDOWS_FREE, 0, 0), -ETIMEDOUT) &&
		windows_expect(test, "WAIT for a while",
			       window_wait(&window, WINDOWS_FREE, 0, NAP_NS), -ETIMEDOUT);
	if (ioctl(window.fd, VGPU_GUEST_WINDOW_WAIT, NULL) != -1 || errno != EFAULT)
		windows_fail(test, "WAIT for nothing: %s", strerror(errno));
	tick(TICK_US);
	right = right && windows_expect(test, "WAIT with a signal",
					window_wait(&window, WINDOWS_FREE, 0, WINDOW_FOREVER),
					-EINTR);
	tick(0);
	window_close(&window);
	return right && !*test->why;
}

struct player {
	const struct window *window;
	uint32_t first;
	int rc;
};

/* Wait until a word has the number of this thread's turn, then pass the turn on. */
static void *play(void *argument)
{
	struct player *player = argument;
	const struct window *window = player->window;

	for (uint32_t turn = player->first; !player->rc && turn < ROUNDS; turn += 2) {
		uint32_t seen;

		while (!player->rc && (seen = window_word(window, WINDOWS_FREE)) != turn)
			player->rc = window_wait(window, WINDOWS_FREE, seen, WINDOW_FOREVER);
		window_set_word(window, WINDOWS_FREE, turn + 1);
		if (!player->rc)
			player->rc = window_ring(window);
	}
	return NULL;
}

/* A ring wakes a waiter. */
bool windows_here(struct windows_test *test)
{
	struct window window;
	struct player here = { .window = &window }, there = { .window = &window, .first = 1 };
	pthread_t thread;

	if (!windows_open(test, &window))
		return false;
	if (pthread_create(&thread, NULL, play, &there)) {
		window_close(&window);
		return windows_fail(test, "no thread");
	}
	play(&here);
	pthread_join(thread, NULL);
	window_close(&window);
	return windows_expect(test, "WAIT and RING here", here.rc, 0) &&
		windows_expect(test, "WAIT and RING there", there.rc, 0);
}

/* The child's ring ends a wait although no word has changed. */
bool windows_rung(struct windows_test *test)
{
	struct window window;
	int rc = -ETIMEDOUT;
	bool right = true;

	if (!windows_open(test, &window))
		return false;
	while (right && rc == -ETIMEDOUT) {
		right = windows_expect(test, "RING", command(&window, WINDOWS_RING), 0);
		rc = window_wait(&window, WINDOWS_FREE, 0, NAP_NS);
	}
	window_close(&window);
	return right && windows_expect(test, "WAIT for a ring", rc, 0);
}

bool windows_lost(struct windows_test *test)
{
	struct pollfd end = { 0 };
	struct window window;
	int events;

	if (!windows_open(test, &window))
		return false;
	end.fd = window.fd;
	window_set_word(&window, WINDOWS_FREE, 7);
	events = window_events(&window);
	if (events)
		windows_fail(test, "poll: %#x of a window that is open", events);
	windows_expect(test, "RING", command(&window, WINDOWS_END), 0);
	if (poll(&end, 1, -1) != 1 || end.revents != POLLHUP)
		windows_fail(test, "poll: %#x when the window is lost", end.revents);
	windows_expect(test, "WAIT without a child",
		       window_wait(&window, WINDOWS_FREE, 7, WINDOW_FOREVER), -EPIPE);
	windows_expect(test, "RING without a child", window_ring(&window), -EPIPE);
	if (window_word(&window, WINDOWS_FREE) != 7)
		windows_fail(test, "the memory of a window that is lost has changed");
	window_close(&window);
	return !*test->why && windows_memory(test);
}

static sigjmp_buf escape;

static void on_bus_error(int number)
{
	siglongjmp(escape, number);
}

/* The signal that reading a word raises, or 0. */
static int touch(const struct window *window, uint32_t offset)
{
	struct sigaction action = { .sa_handler = on_bus_error };
	int number = sigsetjmp(escape, 1);

	if (!number) {
		sigaction(SIGBUS, &action, NULL);
		window_word(window, offset);
	}
	signal(SIGBUS, SIG_DFL);
	return number;
}

/*
 * Wait until a reset or the driver takes the window away. From then on all calls fail with
 * the errno that is reported at the end.
 */
bool windows_hold(struct windows_test *test)
{
	struct window window;
	void *more;
	int error;

	if (!windows_open(test, &window))
		return false;
	window_fill(&window, 0);
	windows_say(test, "held", window.number);
	/* its child may end earlier */
	while (!(error = window_info(&window)))
		if (window_wait(&window, WINDOWS_FREE, 0, WINDOW_FOREVER) == -EPIPE)
			clock_sleep_ns(NAP_NS);
	if (error != -EPIPE && error != -ENODEV)
		windows_expect(test, "INFO", error, -EPIPE);
	windows_expect(test, "WAIT", window_wait(&window, WINDOWS_FREE, 0, 0), error);
	windows_expect(test, "RING", window_ring(&window), error);
	more = mmap(NULL, 4096, PROT_READ, MAP_SHARED, window.fd, 0);
	windows_expect(test, "mmap", more == MAP_FAILED ? -errno : 0, error);
	if (window_events(&window) != POLLHUP)
		windows_fail(test, "poll: %#x", window_events(&window));
	for (uint64_t at = 0; at < window.bytes; at += window.bytes / 4)
		if (touch(&window, at) != SIGBUS)
			windows_fail(test, "the window can still be read at %#llx",
				     (unsigned long long)at);
	window_close(&window);
	windows_say(test, "taken", -error);
	return !*test->why;
}

/* All windows are closing. The executor releases them when it sees that a process waits. */
bool windows_patience(struct windows_test *test)
{
	struct window windows[VGPU_WINDOWS_MAX], more;
	int rc = 0, count = windows_open_all(test, windows);

	for (int i = 0; !rc && i < count; i++) {
		rc = command(&windows[i], WINDOWS_ECHO);
		rc = rc ? rc : answered(&windows[i]);
	}
	windows_close_all(windows, count);
	if (count < VGPU_WINDOWS_MAX || !windows_expect(test, "echo", rc, 0))
		return false;
	windows_expect(test, "a window in no time",
		       window_open(&more, test->path, O_NONBLOCK), -ENOSPC);
	tick(TICK_US);
	windows_expect(test, "a window with a signal", window_open(&more, test->path, 0), -EINTR);
	tick(0);
	windows_say(test, "waiting", 0);
	do
		rc = window_open(&more, test->path, 0);
	while (rc == -ENOSPC);
	if (!windows_expect(test, "open", rc, 0))
		return false;
	window_close(&more);
	return !*test->why;
}
