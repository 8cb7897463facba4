// SPDX-License-Identifier: Apache-2.0
/*
 * fence_keeper CONTROL LIMIT PROGRAM ARGUMENT...: plays the supervisor of one native program.
 *
 * The program inherits this process's standard files.  CONTROL is a socket on which a test sends commands, one a line:
 * "close", "open", "show" and "limit BYTES".  Each command is answered with one line.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/datagram.h"
#include "executor/fence/fence.h"

static struct vgpu_fence_page *page;
static struct vgpu_fence_quota *quota;
static int reopened;

static void *share(size_t bytes)
{
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void launch(int to, char **arguments)
{
	char byte = 0;
	int listener = vgpu_fence_listen();

	if (listener < 0 || vgpu_datagram_send(to, &byte, 1, &listener, 1))
		_exit(3);
	close(listener);
	close(to);
	if (ioctl(-1, VGPU_FENCE_HELLO, 0))
		_exit(4);
	execvp(arguments[0], arguments);
	_exit(5);
}

static int take_listener(int from)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec data = { &byte, 1 };
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control),
	};
	int listener;

	if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message))
		exit(3);
	memcpy(&listener, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(listener));
	return listener;
}

static pid_t start_fence(int listener, int killed)
{
	struct seccomp_notif told = { 0 };
	struct seccomp_notif_resp said = { 0 };
	struct vgpu_fence fence = {
		.listener = listener, .changed = eventfd(0, EFD_NONBLOCK), .reopened = reopened, .kill = killed,
		.procs = open("/", O_RDONLY), .cgroup = "", .supervisor = pidfd_open(getpid(), 0), .page = page,
		.quota = quota, .number = 1,
	};
	pid_t pid;

	if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &told))
		exit(3);
	pid = fork();
	if (!pid)
		vgpu_fence_run(&fence);
	said.id = told.id;
	ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &said);
	close(listener);
	return pid;
}

static void obey(const char *line, char *answer, size_t bytes)
{
	if (!strcmp(line, "close")) {
		atomic_store(&page->closing, 1);
		while (atomic_load(&page->busy))
			;
	} else if (!strcmp(line, "open")) {
		atomic_store(&page->closing, 0);
		eventfd_write(reopened, 1);
	} else if (!strncmp(line, "limit ", 6)) {
		atomic_store(&quota->limit_bytes, strtoull(line + 6, NULL, 10));
	}
	snprintf(answer, bytes, "%u %llu %llu %u", atomic_load(&page->held),
		 (unsigned long long)atomic_load(&page->memory_bytes),
		 (unsigned long long)atomic_load(&quota->used_bytes), page->objects.count);
}

int main(int count, char **arguments)
{
	int control = atoi(arguments[1]), pair[2], killed[2], status = 0;
	char line[64], answer[128];
	pid_t program, fence;
	ssize_t got;

	if (count < 4 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) || pipe2(killed, O_CLOEXEC))
		return 3;
	fcntl(control, F_SETFD, FD_CLOEXEC);
	page = share(sizeof(*page));
	quota = share(sizeof(*quota));
	atomic_store(&quota->limit_bytes, strtoull(arguments[2], NULL, 10));
	reopened = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	program = fork();
	if (!program)
		launch(pair[1], arguments + 3);
	fence = start_fence(take_listener(pair[0]), killed[1]);
	snprintf(answer, sizeof(answer), "%d %d", program, fence);
	send(control, answer, strlen(answer), 0);
	while ((got = recv(control, line, sizeof(line) - 1, 0)) > 0) {
		line[got] = '\0';
		obey(line, answer, sizeof(answer));
		send(control, answer, strlen(answer), 0);
	}
	waitpid(program, &status, 0);
	waitpid(fence, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
