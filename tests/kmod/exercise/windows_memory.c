// SPDX-License-Identifier: GPL-2.0
/* Cases about who can access the memory of a window. */
#define _GNU_SOURCE /* mremap() */
#include "windows.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vgpu_device.h"

#define PROCESSES 4

bool windows_memory(struct windows_test *test)
{
	struct window window;
	bool right;

	if (!windows_open(test, &window))
		return false;
	right = window_is_filled(&window, 0) || windows_fail(test, "the window is not zeroed");
	window_fill(&window, 0x5a5a5a5a);
	right = right && (window_is_filled(&window, 0x5a5a5a5a) ||
			  windows_fail(test, "the window does not hold what was written"));
	right = right && windows_expect(test, "RING", window_ring(&window), 0);
	window_close(&window);
	return right;
}

bool windows_again(struct windows_test *test)
{
	for (int i = 0; i < 2 * VGPU_WINDOWS_MAX; i++)
		if (!windows_memory(test))
			return false;
	return true;
}

/*
 * A process with a window that no other process can see. Returns the step at which it
 * failed, or 0. It reports when it has written, even if that failed, and reads when all
 * processes have written.
 */
static int separate(struct windows_test *test, int ready, int go)
{
	struct window window;
	uint32_t mine = getpid();
	int failed = 0;
	char byte = 0;

	if (!windows_open(test, &window))
		failed = 1;
	else if (!window_is_filled(&window, 0))
		failed = 2;
	else
		window_fill(&window, mine);
	if (write(ready, &byte, 1) != 1 || read(go, &byte, 1))
		return 3;
	if (!failed && !window_is_filled(&window, mine))
		failed = 4;
	return failed;
}

bool windows_four(struct windows_test *test)
{
	int ready[2], go[2], status;
	bool right = true;
	char byte;

	if (pipe(ready) || pipe(go))
		return windows_fail(test, "pipe: %s", strerror(errno));
	for (int i = 0; i < PROCESSES; i++) {
		if (!fork()) {
			close(go[1]);
			_exit(separate(test, ready[1], go[0]));
		}
	}
	close(ready[1]);
	close(go[0]);
	for (int i = 0; i < PROCESSES; i++)
		if (read(ready[0], &byte, 1) != 1)
			break;
	close(go[1]); /* all have written: now they read */
	for (int i = 0; i < PROCESSES; i++)
		if (wait(&status) < 0 || status)
			right = windows_fail(test, "a process failed at its step %d",
					     WEXITSTATUS(status));
	close(ready[0]);
	return right;
}

bool windows_full(struct windows_test *test)
{
	struct window windows[VGPU_WINDOWS_MAX], more;
	int count = windows_open_all(test, windows);
	bool right = count == VGPU_WINDOWS_MAX;

	right = right && windows_expect(test, "one too many, in no hurry",
					window_open(&more, test->path, 0), -ENOSPC) &&
		windows_expect(test, "one too many",
			       window_open(&more, test->path, O_NONBLOCK), -ENOSPC);
	if (count) {
		window_close(&windows[--count]);
		if (right && windows_open(test, &more))
			window_close(&more);
	}
	windows_close_all(windows, count);
	return right && !*test->why;
}

/* Reset the device through its own file. */
bool windows_exclusive(struct windows_test *test)
{
	size_t length = strlen(test->path) - strlen("-compute");
	char *ring = strndup(test->path, length);
	struct window window;
	bool right = false;
	int fd;

	if (!ring || !windows_open(test, &window)) {
		free(ring);
		return false;
	}
	fd = open(ring, O_RDWR | O_CLOEXEC);
	if (fd >= 0 || errno != EBUSY)
		windows_fail(test, "%s could be opened beside a window", ring);
	window_close(&window);
	if (fd >= 0)
		close(fd);
	fd = open(ring, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		windows_fail(test, "opening %s: %s", ring, strerror(errno));
	else
		right = windows_expect(test, "a window beside the device's file",
				       window_open(&window, test->path, 0), -EBUSY);
	if (fd >= 0)
		close(fd);
	free(ring);
	return right && !*test->why && windows_memory(test);
}

/* A child that touches its parent's window. */
bool windows_not_inherited(struct windows_test *test)
{
	struct window window;
	int status = 0;
	pid_t child;

	if (!windows_open(test, &window))
		return false;
	window_set_word(&window, WINDOWS_FREE, 23);
	child = fork();
	if (!child) {
		signal(SIGSEGV, SIG_DFL);
		_exit(window_word(&window, WINDOWS_FREE) == 23);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0)
		windows_fail(test, "fork: %s", strerror(errno));
	else if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
		windows_fail(test, "a child has its parent's window: status %#x", status);
	if (window_word(&window, WINDOWS_FREE) != 23)
		windows_fail(test, "the parent's window is another after fork");
	window_close(&window);
	return !*test->why;
}

static bool refuses(struct windows_test *test, const struct window *window, const char *what,
		    int protection, int flags, uint64_t offset, int expected)
{
	void *found = mmap(NULL, 8192, protection, flags, window->fd, offset);

	if (found == MAP_FAILED)
		return windows_expect(test, what, -errno, expected);
	munmap(found, 8192);
	return windows_fail(test, "%s was not refused", what);
}

bool windows_mappings(struct windows_test *test)
{
	struct window window;
	uint32_t *part;
	bool right;

	if (!windows_open(test, &window))
		return false;
	right = refuses(test, &window, "a private mapping", PROT_READ, MAP_PRIVATE, 0,
			-EINVAL) &&
		refuses(test, &window, "a mapping beyond the end", PROT_READ, MAP_SHARED,
			window.bytes - 4096, -EINVAL) &&
		refuses(test, &window, "a mapping to execute", PROT_READ | PROT_EXEC,
			MAP_SHARED, 0, -EPERM);
	part = mmap(NULL, 8192, PROT_READ, MAP_SHARED, window.fd, window.bytes - 8192);
	if (part == MAP_FAILED) {
		windows_fail(test, "mapping a part: %s", strerror(errno));
	} else {
		window_set_word(&window, window.bytes - 4, 42);
		if (part[8192 / 4 - 1] != 42)
			windows_fail(test, "a part is mapped wrongly");
		if (!mprotect(part, 8192, PROT_READ | PROT_EXEC))
			windows_fail(test, "a mapping became executable");
		if (mremap(part, 8192, 16384, MREMAP_MAYMOVE) != MAP_FAILED)
			windows_fail(test, "a mapping grew");
		if (!madvise(part, 8192, MADV_DOFORK))
			windows_fail(test, "a mapping can be inherited");
		munmap(part, 8192);
	}
	window_close(&window);
	return right && !*test->why;
}
