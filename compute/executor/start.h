/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the arbiter's side starts a supervisor: the broker for a tenant, vgpu-executor for a slice.
 *
 * A supervisor is started as
 *
 *	vgpu-supervisor --tenant NAME --child PATH --library PATH --compile-cache-bytes N
 *
 * with --nvidia N in addition if children compute on an NVIDIA GPU whose channels the gate stops.
 * It gets its socket (SOCK_SEQPACKET, struct vgpu_supervisor_message) as descriptor
 * VGPU_FD_SUPERVISOR_SOCKET, /dev/null as standard input, and the starter's standard output and
 * error.  It has no other descriptor.  --child is the program vgpu-child; --library is the
 * accelerator's own OpenCL library, which the child loads.  The supervisor inherits the starter's
 * environment.  It leads its own process group, and is sent SIGKILL when its starter dies.
 *
 * It kills all its children and exits when its socket is closed or on SIGTERM.  All its children
 * die with it, whatever the cause of its death.  A START that arrives before the supervisor is
 * ready waits in the socket.
 *
 * A THAW of children that are not frozen, and a FREEZE of frozen children, change nothing and are
 * answered with DONE: the broker also uses them to query processor_ns.
 */
#ifndef VGPU_EXECUTOR_START_H
#define VGPU_EXECUTOR_START_H

#include <stdint.h>
#include <sys/types.h>

#define VGPU_FD_SUPERVISOR_SOCKET	3

/**
 * struct vgpu_supervisor_settings - the supervisor's command line
 * @program: path of vgpu-supervisor
 * @tenant: name for its log
 * @library: "" if there are native programs only
 * @nvidia: NULL, or the minor number of the NVIDIA GPU that children compute on, as text
 * @natives: NULL, or a directory for native programs that all supervisors of a broker share; only
 *	with @nvidia
 * @gate_limit_ns: a child that has not stopped after this time is killed; the value is clamped to
 *	the range that the supervisor permits
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

/* A started supervisor.  The descriptors are close-on-exec, and owned by the caller. */
struct vgpu_supervisor_process {
	pid_t pid;
	int pidfd;
	int socket;
};

/* Return: 0, or -errno if nothing was started. */
int vgpu_supervisor_start(const struct vgpu_supervisor_settings *settings,
			  struct vgpu_supervisor_process *process);

#endif /* VGPU_EXECUTOR_START_H */
