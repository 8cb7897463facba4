// SPDX-License-Identifier: Apache-2.0
#include "executor/sandbox/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/sandbox/sandbox.h"

/* Descriptors are first moved above this number, and then to their fixed numbers. */
#define ABOVE	64

static _Noreturn void fail(const char *what)
{
	dprintf(STDERR_FILENO, "vgpu-child level=error cannot be started: %s: %s\n", what,
		strerror(errno));
	_exit(127);
}

/* Moves descriptors to their fixed numbers, followed by @program and @go, and closes all others. */
static void place_descriptors(const struct vgpu_spawn *spawn, int *program, int *go)
{
	int moved[VGPU_SPAWN_DESCRIPTORS], behind = 3 + (int)spawn->descriptors_count;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(spawn->output, STDOUT_FILENO) < 0 ||
	    dup2(spawn->output, STDERR_FILENO) < 0)
		fail("standard descriptors");
	*program = fcntl(spawn->program, F_DUPFD_CLOEXEC, ABOVE);
	if (*program < 0)
		fail("program");
	*go = fcntl(*go, F_DUPFD_CLOEXEC, ABOVE);
	if (*go < 0)
		fail("descriptors");
	for (unsigned int i = 0; i < spawn->descriptors_count; i++) {
		moved[i] = fcntl(spawn->descriptors[i], F_DUPFD_CLOEXEC, ABOVE);
		if (moved[i] < 0)
			fail("descriptors");
	}
	for (unsigned int i = 0; i < spawn->descriptors_count; i++)
		if (dup2(moved[i], 3 + (int)i) < 0)
			fail("descriptors");
	*program = dup3(*program, behind, O_CLOEXEC);
	*go = dup3(*go, behind + 1, O_CLOEXEC);
	if (*program < 0 || *go < 0 || close_range((unsigned int)behind + 2, ~0u, 0))
		fail("descriptors");
}

static void die_with_parent(pid_t parent, bool own_pids)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))
		fail("PR_SET_PDEATHSIG");
	/* In a PID namespace, getppid() always returns 0 for a parent outside, even if it is dead. */
	if (!own_pids && getppid() != parent)
		_exit(127);
}

/* Runs in the new process. */
static _Noreturn void become(const struct vgpu_spawn *spawn, uint64_t namespaces, int go,
			     pid_t parent)
{
	bool own_pids = namespaces & CLONE_NEWPID;
	struct sigaction normal = { .sa_handler = SIG_DFL };
	sigset_t none;
	int program;
	char byte;

	die_with_parent(parent, own_pids);
	/*
	 * Do this first: from here on the process keeps none of the supervisor's descriptors open,
	 * even if it is frozen.
	 */
	place_descriptors(spawn, &program, &go);
	/*
	 * Wait until the supervisor has set the user mapping and the cgroup, and has written a byte
	 * to the pipe.  If the supervisor dies, read() returns 0.
	 */
	if (read(go, &byte, 1) != 1)
		_exit(127);
	if (namespaces & CLONE_NEWUSER && !byte) {
		/*
		 * The supervisor is root and has mapped user 0 of this namespace to the host's user
		 * nobody.
		 */
		if (setgroups(0, NULL) || setresgid(0, 0, 0) || setresuid(0, 0, 0))
			fail("user");
	}
	/* The change of user has cleared the parent-death signal. */
	die_with_parent(parent, own_pids);
	setsid();
	for (int number = 1; number < NSIG; number++)
		sigaction(number, &normal, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	syscall(SYS_execveat, program, "", spawn->arguments, spawn->environment, AT_EMPTY_PATH);
	fail("exec");
}

static int write_file(pid_t pid, const char *name, const char *text)
{
	char path[64];
	int file, error = 0;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return errno;
	if (write(file, text, strlen(text)) < 0)
		error = errno;
	close(file);
	return error;
}

static int give_user(pid_t pid, bool *as_root)
{
	char map[64];
	int error;

	*as_root = !geteuid();
	if (*as_root) {
		snprintf(map, sizeof(map), "0 %u 1", VGPU_NOBODY);
		error = write_file(pid, "gid_map", map);
		return error ? error : write_file(pid, "uid_map", map);
	}
	error = write_file(pid, "setgroups", "deny");
	snprintf(map, sizeof(map), "0 %u 1", getegid());
	if (!error)
		error = write_file(pid, "gid_map", map);
	snprintf(map, sizeof(map), "0 %u 1", geteuid());
	return error ? error : write_file(pid, "uid_map", map);
}

static void reap(struct vgpu_spawned *spawned)
{
	siginfo_t information;

	pidfd_send_signal(spawned->pidfd, SIGKILL, NULL, 0);
	while (waitid(P_PIDFD, (id_t)spawned->pidfd, &information, WEXITED) < 0 && errno == EINTR)
		;
	close(spawned->pidfd);
}

static int start(const struct vgpu_spawn *spawn, uint64_t namespaces, struct vgpu_spawned *spawned)
{
	struct clone_args arguments = {
		.flags = namespaces | CLONE_PIDFD |
			 (spawn->cgroup >= 0 ? CLONE_INTO_CGROUP : 0),
		.pidfd = (uintptr_t)&spawned->pidfd,
		.exit_signal = SIGCHLD,
		.cgroup = (uint64_t)spawn->cgroup,
	};
	pid_t parent = getpid();
	char number[16];
	bool as_root = false;
	int go[2], error = 0;
	long pid;

	if (spawn->cgroup < 0)
		arguments.cgroup = 0;
	if (pipe2(go, O_CLOEXEC))
		return errno;
	pid = syscall(SYS_clone3, &arguments, sizeof(arguments));
	if (!pid) {
		close(go[1]);
		become(spawn, namespaces, go[0], parent);
	}
	error = pid < 0 ? errno : 0;
	close(go[0]);
	spawned->pid = (pid_t)pid;
	spawned->namespaces = namespaces;
	if (!error) {
		if (namespaces & CLONE_NEWUSER)
			error = give_user(spawned->pid, &as_root);
		snprintf(number, sizeof(number), "%d", spawned->pid);
		for (unsigned int i = 0; i < 2 && !error; i++)
			if (spawn->cgroup_procs[i] >= 0 &&
			    pwrite(spawn->cgroup_procs[i], number, strlen(number), 0) < 0)
				error = errno;
		if (!error && write(go[1], as_root ? "\0" : "x", 1) != 1)
			error = EPIPE;
		if (error)
			reap(spawned);
	}
	close(go[1]);
	return error;
}

static char *names_of(uint64_t namespaces)
{
	char *names = calloc(1, 128);

	for (unsigned int i = 0; names && i < vgpu_namespaces_count; i++)
		if (namespaces & vgpu_namespaces[i].flag) {
			if (*names)
				strcat(names, ",");
			strcat(names, vgpu_namespaces[i].name);
		}
	return names;
}

int vgpu_spawn(const struct vgpu_spawn *spawn, struct vgpu_spawned *spawned)
{
	/* If root may not make a user namespace, it may still make the other namespaces. */
	const uint64_t tries[] = { spawn->namespaces, spawn->namespaces & ~(uint64_t)CLONE_NEWUSER, 0 };
	char *argument = spawn->arguments[spawn->namespaces_argument];
	int error = 0;

	for (unsigned int i = 0; i < 3; i++) {
		char *names = names_of(tries[i]);

		if (!names)
			return ENOMEM;
		spawn->arguments[spawn->namespaces_argument] = names;
		error = start(spawn, tries[i], spawned);
		spawn->arguments[spawn->namespaces_argument] = argument;
		free(names);
		if (error != EPERM && error != ENOSPC && error != EINVAL && error != EACCES &&
		    error != EUSERS)
			break;
	}
	return error;
}
