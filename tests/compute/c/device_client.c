// SPDX-License-Identifier: Apache-2.0
/*
 * A client of the guest library's transport.  This process itself plays the calls of /dev/vgpuN-compute.
 * VGPUMGR_DEVICE is a file that a test maps as the child's side.  FILE.control beside it has the state of
 * the guest's kernel:
 *
 *	word 0	enum: 0 open, 1 lost, 2 reset, 3 the host starts no child
 *	word 1	rings of the child; a futex
 *	word 2	rings of this process; a futex
 *	word 3	how often this process has waited
 *
 *	device_client echo COUNT | wait | fork | start
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "guest/transport/connection.h"
#include "uapi/vgpu_guest.h"

enum { OPEN, LOST, RESET, IDLE };

struct control {
	_Atomic uint32_t state, to_guest, to_child, waits;
};

static struct control *control;
static _Atomic uint64_t skipped_ns;

static void map_control(void)
{
	char path[512];
	int file;

	snprintf(path, sizeof(path), "%s.control", getenv("VGPUMGR_DEVICE"));
	file = open(path, O_RDWR);
	control = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (file < 0 || control == MAP_FAILED)
		exit(3);
}

/* Skips waits: the clock jumps ahead by the time of waits during which nothing can happen. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	long error = syscall(SYS_clock_gettime, clock, now);
	uint64_t ns = (uint64_t)now->tv_nsec + atomic_load(&skipped_ns);

	now->tv_sec += (time_t)(ns / 1000000000u);
	now->tv_nsec = (long)(ns % 1000000000u);
	return (int)error;
}

/* Returns only after a change, so a test knows where the process is. */
static int wait_for_word(int fd, const struct vgpu_guest_window_wait *wait)
{
	uint32_t seen = atomic_load(&control->to_guest), word;

	atomic_fetch_add(&control->waits, 1);
	if (wait->offset % 4 || wait->offset >= VGPU_WINDOW_PAGE)
		return EINVAL;
	for (;;) {
		uint32_t state = atomic_load(&control->state);

		if (state == LOST || state == RESET)
			return state == LOST ? EPIPE : ENODEV;
		if (state == IDLE) {
			atomic_fetch_add(&skipped_ns, wait->timeout_ns);
			return ETIMEDOUT;
		}
		/* pread() instead of a mapped access, because a test removes the memory. */
		if (pread(fd, &word, sizeof(word), wait->offset) == sizeof(word) && word != wait->value)
			return 0;
		if (atomic_load(&control->to_guest) != seen)
			return 0;
		syscall(SYS_futex, &control->to_guest, FUTEX_WAIT, seen, NULL, NULL, 0);
	}
}

static void wake(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, 1000, NULL, NULL, 0);
}

static int call(int fd, unsigned long request, void *argument)
{
	struct vgpu_guest_window *window = argument;
	struct stat status;

	switch (request) {
	case VGPU_GUEST_WINDOW_INFO:
		map_control();
		if (fstat(fd, &status))
			return errno;
		*window = (struct vgpu_guest_window){ .bytes = (uint64_t)status.st_size };
		return 0;
	case VGPU_GUEST_WINDOW_WAIT:
		return wait_for_word(fd, argument);
	case VGPU_GUEST_WINDOW_RING:
		wake(&control->to_child);
		wake(&control->to_guest);	/* waiters in this process check again too */
		return 0;
	default:
		return ENOTTY;
	}
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	void *argument;
	int error;

	va_start(list, request);
	argument = va_arg(list, void *);
	va_end(list);
	error = call(fd, request, argument);
	errno = error;
	return error ? -1 : 0;
}

static atomic_uint answered;

static bool count_reply(struct vgpu_pending *pending, const struct vgpu_message *message, uint32_t bytes)
{
	(void)pending;
	(void)bytes;
	if (message)
		atomic_fetch_add(&answered, 1);
	return true;
}

static bool has_all(void *count)
{
	return atomic_load(&answered) == *(unsigned int *)count;
}

static bool send_one(struct vgpu_pending *pending)
{
	struct vgpu_message *message = vgpu_send_begin(VGPU_MESSAGE_BYTES);

	if (!message)
		return false;
	*message = (struct vgpu_message){ .bytes = VGPU_MESSAGE_BYTES, .op = 1, .call = vgpu_expect(pending) };
	vgpu_send_commit();
	return true;
}

static void other(const struct vgpu_message *message, uint32_t bytes)
{
	(void)message;
	(void)bytes;
}

static int fork_and_look(void)
{
	int status = 0;
	pid_t copy = fork();

	if (!copy)
		_exit(vgpu_usable() || vgpu_send_begin(64) || vgpu_connection.fd >= 0);
	waitpid(copy, &status, 0);
	printf("copy %s, usable %d\n", status ? "wrong" : "right", vgpu_usable());
	return 0;
}

int main(int argc, char **argv)
{
	static struct vgpu_pending pending = { count_reply };
	unsigned int count = argc > 2 ? (unsigned int)atoi(argv[2]) : 1;
	int error = vgpu_start(other);
	bool done;

	if (error) {
		printf("no start: %d\n", error);
		return 0;
	}
	printf("started with %llu bytes\n", (unsigned long long)vgpu_bulk_total());
	fflush(stdout);
	if (!strcmp(argv[1], "fork"))
		return fork_and_look();
	if (!strcmp(argv[1], "start"))
		return 0;
	for (unsigned int i = 0; i < count; i++)
		if (!send_one(&pending))
			break;
	done = vgpu_wait(has_all, &count);
	printf("wait %d, usable %d, answered %u\n", done, vgpu_usable(), atomic_load(&answered));
	return 0;
}
