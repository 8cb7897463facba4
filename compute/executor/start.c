// SPDX-License-Identifier: Apache-2.0
#include "executor/start.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GATE_LIMIT_MIN_NS	100000000ull
#define GATE_LIMIT_MAX_NS	600000000000ull

static uint64_t gate_limit_ms(uint64_t limit_ns)
{
	if (limit_ns < GATE_LIMIT_MIN_NS)
		limit_ns = GATE_LIMIT_MIN_NS;
	if (limit_ns > GATE_LIMIT_MAX_NS)
		limit_ns = GATE_LIMIT_MAX_NS;
	return limit_ns / 1000000;
}

/* Runs in the new process and never returns. */
static void become(const struct vgpu_supervisor_settings *settings, int socket, pid_t parent)
{
	char compile_cache_bytes[24], gate_limit[24];
	const char *const arguments[] = {
		settings->program,
		"--tenant", settings->tenant,
		"--child", settings->child,
		settings->library[0] ? "--library" : "--backend",
		settings->library[0] ? settings->library : "opencl",
		"--compile-cache-bytes", compile_cache_bytes,
		"--gate-limit-ms", gate_limit,
		settings->nvidia ? "--nvidia" : NULL, settings->nvidia,
		settings->natives ? "--natives" : NULL, settings->natives,
		NULL,
	};
	sigset_t none;
	int null;

	snprintf(compile_cache_bytes, sizeof(compile_cache_bytes), "%llu",
		 (unsigned long long)settings->compile_cache_bytes);
	snprintf(gate_limit, sizeof(gate_limit), "%llu",
		 (unsigned long long)gate_limit_ms(settings->gate_limit_ns));
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* The parent may have died before prctl(). */
	if (getppid() != parent)
		_exit(127);
	null = open("/dev/null", O_RDONLY);
	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(socket, VGPU_FD_SUPERVISOR_SOCKET) < 0)
		_exit(127);
	/* dup2() of a descriptor to itself does not clear close-on-exec. */
	if (fcntl(VGPU_FD_SUPERVISOR_SOCKET, F_SETFD, 0) || close_range(VGPU_FD_SUPERVISOR_SOCKET + 1, ~0u, 0))
		_exit(127);
	execv(settings->program, (char *const *)arguments);
	_exit(127);
}

int vgpu_supervisor_start(const struct vgpu_supervisor_settings *settings,
			  struct vgpu_supervisor_process *process)
{
	pid_t parent = getpid();
	int pair[2], error;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -errno;
	process->pid = fork();
	if (!process->pid)
		become(settings, pair[1], parent);
	error = process->pid < 0 ? -errno : 0;
	close(pair[1]);
	if (!error) {
		process->socket = pair[0];
		process->pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
		if (process->pidfd >= 0)
			return 0;
		error = -errno;
		kill(process->pid, SIGKILL);
		waitpid(process->pid, NULL, 0);
	}
	close(pair[0]);
	return error;
}
