// SPDX-License-Identifier: Apache-2.0
/*
 * Kills a tree of processes while one of them ends and a stranger gets its process id.  This happens
 * between the reading of the id and the opening of a pidfd.  This program extends that moment as long
 * as it needs (-Wl,--wrap=pidfd_open).
 *
 * Runs in a PID namespace of its own.  Prints whether the stranger lives.
 */
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "executor/gate/gate.h"

static pid_t descendant, stranger;

int __real_pidfd_open(pid_t pid, unsigned int flags);
int __wrap_pidfd_open(pid_t pid, unsigned int flags);

static pid_t start_with_number(pid_t number)
{
	struct clone_args arguments = {
		.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1,
	};
	pid_t pid = (pid_t)syscall(SYS_clone3, &arguments, sizeof(arguments));

	while (!pid)
		pause();
	return pid;
}

int __wrap_pidfd_open(pid_t pid, unsigned int flags)
{
	if (pid == descendant && !stranger) {
		/* The parent ignores SIGCHLD, so the kernel releases the id without a wait(). */
		kill(descendant, SIGKILL);
		while (!kill(descendant, 0))
			usleep(100);
		stranger = start_with_number(descendant);
		if (stranger != descendant) {
			perror("clone3");
			exit(2);
		}
	}
	return __real_pidfd_open(pid, flags);
}

static pid_t start_member(void)
{
	int told[2];
	pid_t pid;

	if (pipe(told))
		exit(2);
	pid = fork();
	if (!pid) {
		signal(SIGCHLD, SIG_IGN);
		descendant = fork();
		while (!descendant)
			pause();
		if (write(told[1], &descendant, sizeof(descendant)) < 0)
			_exit(2);
		for (;;)
			pause();
	}
	if (pid < 0 || read(told[0], &descendant, sizeof(descendant)) != sizeof(descendant))
		exit(2);
	return pid;
}

int main(void)
{
	struct vgpu_gate gate;
	struct vgpu_gate_member member;
	struct vgpu_gate_member *members = &member;

	if (vgpu_gate_open(&gate, VGPU_GATE_SIGNAL, NULL) || vgpu_gate_add(&gate, &member, 1, false))
		return 2;
	member.pid = start_member();
	member.pidfd = __real_pidfd_open(member.pid, 0);
	/* The stopped member exists until its descendants have been searched. */
	vgpu_gate_close(&gate, &members, 1);
	if (!stranger)
		return 3;
	usleep(1000);
	printf("%s\n", waitpid(stranger, NULL, WNOHANG | WUNTRACED) ? "stopped" : "runs");
	kill(member.pid, SIGKILL);
	kill(stranger, SIGKILL);
	return 0;
}
