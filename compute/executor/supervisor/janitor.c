// SPDX-License-Identifier: Apache-2.0
/*
 * A supervisor that is killed cannot remove its cgroups.  The janitor is a process
 * that waits for the supervisor's end, whatever it is, and removes them; if the
 * janitor is killed as well, the next supervisor does (vgpu_gate_sweep()).
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "executor/supervisor/supervisor.h"

void vgpu_scratch_path(char *path, size_t bytes, pid_t supervisor, bool compiler, uint64_t number)
{
	snprintf(path, bytes, "/tmp/vgpu-%d-%s-%llu", supervisor, compiler ? "compiler" : "child",
		 (unsigned long long)number);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *position)
{
	(void)status;
	(void)type;
	(void)position;
	remove(path);
	return 0;
}

void vgpu_scratch_remove(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static _Noreturn void clean(const struct vgpu_supervisor *s, int pipe, pid_t supervisor)
{
	char pattern[64], byte;
	glob_t found;

	prctl(PR_SET_NAME, "vgpu-janitor");
	setsid();
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_IGN);
	dup2(pipe, 3);
	close_range(4, ~0u, 0);
	while (read(3, &byte, 1) < 0 && errno == EINTR)
		;
	if (s->gate.path[0])
		vgpu_gate_destroy(s->gate.path);
	if (s->memory.path[0])
		vgpu_gate_destroy(s->memory.path);
	snprintf(pattern, sizeof(pattern), "/tmp/vgpu-%d-*", supervisor);
	if (!glob(pattern, GLOB_NOSORT, NULL, &found))
		for (size_t i = 0; i < found.gl_pathc; i++)
			vgpu_scratch_remove(found.gl_pathv[i]);
	_exit(0);
}

int vgpu_janitor_start(struct vgpu_supervisor *s)
{
	pid_t supervisor = getpid();
	int pipe[2];

	/* The supervisor never writes: its end of the pipe is closed when it ends. */
	if (pipe2(pipe, O_CLOEXEC))
		return errno;
	s->janitor = fork();
	if (s->janitor < 0)
		return errno;
	if (!s->janitor) {
		close(pipe[1]);
		clean(s, pipe[0], supervisor);
	}
	close(pipe[0]);
	return 0;
}
