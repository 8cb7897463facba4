// SPDX-License-Identifier: Apache-2.0
/*
 * A supervisor that is killed cannot remove its cgroups and its scratch directory.  The janitor is
 * a process that waits until the supervisor has ended for any reason, and then removes them.  If
 * the janitor is killed as well, the next supervisor removes the cgroups (vgpu_gate_sweep()).
 *
 * Children die with their supervisor, and in a PID namespace so do all their descendants.  Without
 * a PID namespace, a compiler's linker would survive.  Each child leads a session, which its
 * descendants cannot leave (seccomp), so the janitor kills all processes of these sessions.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"
#include "executor/supervisor/supervisor.h"

#define KILLS	1000u

struct sessions {
	pid_t leaders[VGPU_CHILDREN_MAX + VGPU_COMPILERS_MAX];
	unsigned int count;
};

static void note(struct sessions *sessions, pid_t leader)
{
	const unsigned int most = sizeof(sessions->leaders) / sizeof(sessions->leaders[0]);

	if (leader > 0 && sessions->count < most)
		sessions->leaders[sessions->count++] = leader;
	for (unsigned int i = 0; leader < 0 && i < sessions->count; i++)
		if (sessions->leaders[i] == -leader)
			sessions->leaders[i] = sessions->leaders[--sessions->count];
}

static bool is_known(const struct sessions *sessions, pid_t session)
{
	for (unsigned int i = 0; i < sessions->count; i++)
		if (sessions->leaders[i] == session)
			return true;
	return false;
}

/* Kills all processes in the sessions.  Return: their number. */
static unsigned int kill_sessions(const struct sessions *sessions)
{
	struct dirent *entry;
	DIR *processes = sessions->count ? opendir("/proc") : NULL;
	unsigned int count = 0;

	while (processes && (entry = readdir(processes))) {
		pid_t pid = atoi(entry->d_name);
		int process = pid > 0 && is_known(sessions, getsid(pid)) ? pidfd_open(pid, 0) : -1;

		if (process < 0)
			continue;
		/* The process may have ended, and its PID may have been reused, before pidfd_open(). */
		if (is_known(sessions, getsid(pid)) && !pidfd_send_signal(process, SIGKILL, NULL, 0))
			count++;
		close(process);
	}
	if (processes)
		closedir(processes);
	return count;
}

static _Noreturn void clean(const struct vgpu_supervisor *s, int pipe)
{
	struct sessions sessions = { .count = 0 };
	struct vgpu_scratch scratch = s->scratch;
	pid_t leader;
	ssize_t bytes;

	prctl(PR_SET_NAME, "vgpu-janitor");
	setsid();
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_IGN);
	dup2(pipe, 3);
	scratch.directory = dup2(scratch.directory, 4);
	close_range(5, ~0u, 0);
	while ((bytes = read(3, &leader, sizeof(leader))) == sizeof(leader) ||
	       (bytes < 0 && errno == EINTR))
		if (bytes > 0)
			note(&sessions, leader);
	/* Limit the attempts: a zombie that nobody reaps is found again each time. */
	for (unsigned int i = 0; i < KILLS && kill_sessions(&sessions); i++)
		usleep(1000);
	if (s->gate.path[0])
		vgpu_gate_destroy(s->gate.path);
	if (s->memory.path[0])
		vgpu_gate_destroy(s->memory.path);
	vgpu_scratch_close(&scratch);
	_exit(0);
}

int vgpu_janitor_start(struct vgpu_supervisor *s)
{
	int pipe[2];

	/*
	 * The supervisor reports sessions through its end of the pipe.  That end is closed when the
	 * supervisor ends.
	 */
	s->janitor_pipe = -1;
	if (pipe2(pipe, O_CLOEXEC | O_NONBLOCK))
		return errno;
	s->janitor = fork();
	if (s->janitor < 0)
		return errno;
	if (!s->janitor) {
		close(pipe[1]);
		fcntl(pipe[0], F_SETFL, 0);
		clean(s, pipe[0]);
	}
	close(pipe[0]);
	s->janitor_pipe = pipe[1];
	return 0;
}

void vgpu_janitor_tell(struct vgpu_supervisor *s, pid_t leader)
{
	if (s->janitor_pipe >= 0 && write(s->janitor_pipe, &leader, sizeof(leader)) < 0)
		vgpu_log(LOG_WARNING, "event=janitor cannot be notified, error=%d", errno);
}
