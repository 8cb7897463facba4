/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an arbiter's side starts a supervisor: the broker for a tenant, vgpu-executor for a
 * slice.
 *
 * A supervisor is started as
 *
 *	vgpu-supervisor --tenant NAME --child PATH --library PATH --compile-cache-bytes N
 *
 * and --nvidia N where children compute on an NVIDIA GPU whose channels the gate stops,
 * with its socket (SOCK_SEQPACKET, struct vgpu_supervisor_message) as descriptor
 * VGPU_FD_SUPERVISOR_SOCKET, /dev/null as standard input, and the starter's
 * standard output and error.  It has no other descriptor.  --child is the program
 * vgpu-child; --library is the accelerator's own OpenCL library, which the child
 * loads.  The environment is the starter's.  The supervisor leads a process group
 * of its own, and is sent SIGKILL when its starter dies.
 *
 * It kills all its children and exits when its socket ends or on SIGTERM.  All its
 * children die with it, whatever it dies of.  A START that arrives before it is
 * ready waits in the socket.
 *
 * THAW of children that are not frozen, and FREEZE of frozen ones, change nothing
 * and are answered with DONE: the broker also asks for processor_ns by them.
 */
#ifndef VGPU_EXECUTOR_START_H
#define VGPU_EXECUTOR_START_H

#include <stdint.h>
#include <sys/types.h>

#define VGPU_FD_SUPERVISOR_SOCKET	3

/**
 * struct vgpu_supervisor_settings - its command line
 * @program: path of vgpu-supervisor
 * @tenant: for its log
 * @library: "" if there are native programs only
 * @nvidia: NULL, or the minor number of the NVIDIA GPU that children compute on, as text
 * @natives: NULL, or a directory that all supervisors of a broker share, for native programs; with
 *	@nvidia only
 * @gate_limit_ns: a child that has not stopped by then is killed; it is brought within
 *	what the supervisor allows
 */
struct vgpu_supervisor_settings {
	const char *program;
	const char *tenant;
	const char *child;
	const char *library;
	const char *nvidia;
	const char *natives;
	uint64_t compile_cache_bytes;
	uint64_t gate_limit_ns;
};

/* What was started.  The descriptors are close-on-exec, and the caller's. */
struct vgpu_supervisor_process {
	pid_t pid;
	int pidfd;
	int socket;
};

/* Return: 0 or -errno, and then nothing was started. */
int vgpu_supervisor_start(const struct vgpu_supervisor_settings *settings,
			  struct vgpu_supervisor_process *process);

#endif /* VGPU_EXECUTOR_START_H */
