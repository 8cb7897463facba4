// SPDX-License-Identifier: Apache-2.0
/*
 * vgpu-native [--contained] --socket PATH -- PROGRAM [ARGUMENT...]
 *
 * Executes PROGRAM, which uses an NVIDIA GPU itself, but only in the tenant's turns and within
 * the tenant's memory limit.  PATH is the tenant's socket.  From here on a fence answers the
 * ioctl() calls of this process and of all processes that it starts (executor/fence/fence.h).
 * With --contained, for use in a container, these processes also cannot interfere with programs
 * that are started later (contained.h).
 *
 * Exit status if PROGRAM is not executed: 125 if the launcher was refused or failed, with the
 * reason on standard error; 126 if PROGRAM cannot be executed; 127 if PROGRAM does not exist.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "executor/datagram.h"
#include "executor/fence/fence.h"
#include "native/contained.h"
#include "protocol/control.h"

enum {
	STATUS_REFUSED = 125,
	STATUS_NOT_EXECUTABLE = 126,
	STATUS_NOT_FOUND = 127,
};

static const char usage[] =
	"usage: vgpu-native [--contained] --socket PATH -- PROGRAM [ARGUMENT...]\n"
	"Runs a program that holds an NVIDIA GPU itself, in its tenant's turns.\n"
	"`vgpumgr run --native` does this; PATH is the tenant's socket.\n"
	"--contained is for containers: the program cannot interfere with programs started later.\n";

static _Noreturn void refuse(const char *code, const char *format, ...)
{
	va_list list;

	fprintf(stderr, "vgpumgr: %s: ", code);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
	exit(STATUS_REFUSED);
}

static int join(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(address.sun_path))
		refuse("field.invalid", "--socket: %s is too long for a socket's path", path);
	strcpy(address.sun_path, path);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)))
		refuse("broker.unreachable", "%s: %s", path, strerror(errno));
	return fd;
}

/*
 * If the supervisor refuses the program, the call fails, and the reason can be read from the
 * socket.
 */
static _Noreturn void say_why(int fd, int error)
{
	struct vgpu_client_message message = { 0 };
	ssize_t got = recv(fd, &message, sizeof(message), 0);

	message.reason[sizeof(message.reason) - 1] = '\0';
	if (got == (ssize_t)sizeof(message) && message.op == VGPU_CLIENT_REFUSED)
		refuse("native.refused", "%s", message.reason);
	refuse("native.refused", "the broker has hung up (%s)", strerror(error));
}

static void enter(const char *path)
{
	struct vgpu_client_message message = { .version = VGPU_CONTROL_VERSION, .op = VGPU_CLIENT_NATIVE };
	int fd = join(path), listener, error;

	listener = vgpu_fence_listen();
	if (listener < 0)
		refuse("native.unsupported", "the kernel does not support answering ioctl() calls for a program: %s",
		       strerror(-listener));
	error = vgpu_datagram_send(fd, &message, sizeof(message), &listener, 1);
	if (error)
		refuse("broker.unreachable", "%s: %s", path, strerror(-error));
	/*
	 * Close our own copy of the listener.  If the broker does not hold the listener either,
	 * the call below then fails instead of waiting for ever.
	 */
	close(listener);
	if (ioctl(-1, VGPU_FENCE_HELLO, 0))
		say_why(fd, errno);
	close(fd);
}

static void contain(void)
{
	int error = vgpu_contain();

	if (error)
		refuse("native.unsupported", "the kernel, or the container's filter of system calls, lacks Landlock,"
		       " which keeps a container's programs out of each other: %s", strerror(-error));
}

int main(int count, char **arguments)
{
	bool contained;

	if (count >= 2 && !strcmp(arguments[1], "--help")) {
		fputs(usage, stdout);
		return 0;
	}
	contained = count >= 2 && !strcmp(arguments[1], "--contained");
	count -= contained;
	arguments += contained;
	if (count < 5 || strcmp(arguments[1], "--socket") || strcmp(arguments[3], "--")) {
		fputs(usage, stderr);
		return STATUS_REFUSED;
	}
	if (contained)
		contain();
	enter(arguments[2]);
	execvp(arguments[4], arguments + 4);
	fprintf(stderr, "vgpumgr: %s: %s\n", arguments[4], strerror(errno));
	return errno == ENOENT ? STATUS_NOT_FOUND : STATUS_NOT_EXECUTABLE;
}
