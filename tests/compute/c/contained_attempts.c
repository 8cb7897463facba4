// SPDX-License-Identifier: Apache-2.0
/*
 * contained_attempts PID FOLDER [contained]: tests what a process can do with and without containment.
 *
 * Tries to write into the memory of PID, to trace it, to mount, to make a device, and to do
 * what is always allowed.  Prints the name of each attempt that succeeded, one a line.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "native/contained.h"

static void say(const char *name, int succeeded)
{
	if (succeeded)
		puts(name);
}

static int can_write_memory(pid_t pid)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDWR);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int can_trace(pid_t pid)
{
	if (ptrace(PTRACE_SEIZE, pid, 0, 0))
		return 0;
	ptrace(PTRACE_INTERRUPT, pid, 0, 0);
	waitpid(pid, NULL, __WALL);
	ptrace(PTRACE_DETACH, pid, 0, 0);
	return 1;
}

static void try_own_child(void)
{
	pid_t child = fork();

	if (!child) {
		pause();
		_exit(0);
	}
	say("own-memory", can_write_memory(child));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

int main(int count, char **arguments)
{
	pid_t pid = count > 2 ? atoi(arguments[1]) : 0;

	if (!pid || chdir(arguments[2]) || mkdir("a", 0755) || mkdir("b", 0755))
		return 1;
	if (count > 3 && vgpu_contain())
		return 1;
	say("memory", can_write_memory(pid));
	say("trace", can_trace(pid));
	say("mount", !mount("a", "a", NULL, MS_BIND, NULL));
	say("unmount", !umount("a"));
	try_own_child();
	say("device", !mknod("a/device", S_IFCHR | 0600, makedev(1, 3)));
	say("pipe", !mknod("a/pipe", S_IFIFO | 0600, 0));
	say("rename", !rename("a/pipe", "b/pipe"));
	say("link", !link("b/pipe", "a/again"));
	return 0;
}
