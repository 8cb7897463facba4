/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts a process in its own namespaces; the supervisor calls this.
 *
 * The process dies when the supervisor dies.  If it has a PID namespace, its descendants die with
 * it.  It has the given descriptors from 3 on, /dev/null as standard input, and no other descriptor
 * of the supervisor.
 */
#ifndef VGPU_EXECUTOR_SPAWN_H
#define VGPU_EXECUTOR_SPAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The user of a child on the host if the supervisor is root. */
#define VGPU_NOBODY	65534u
#define VGPU_SPAWN_DESCRIPTORS	8u

/**
 * struct vgpu_spawn - what to start
 * @program: descriptor of the program
 * @arguments: ends with NULL.  The argument with index @namespaces_argument is replaced by the
 *	names of the namespaces that the process got, separated by commas.
 * @descriptors: become 3, 4, ...
 * @output: becomes standard output and standard error
 * @cgroup: descriptor of the cgroup v2 directory to start in, or -1
 * @cgroup_procs: descriptors of cgroup.procs to move the process to before it runs, or -1
 * @namespaces: namespaces to request, as flags of clone(2)
 */
struct vgpu_spawn {
	int program;
	char **arguments;
	unsigned int namespaces_argument;
	char **environment;
	int descriptors[VGPU_SPAWN_DESCRIPTORS];
	unsigned int descriptors_count;
	int output;
	int cgroup;
	int cgroup_procs[2];
	uint64_t namespaces;
};

/**
 * struct vgpu_spawned - a started process
 * @pidfd: the caller must close it
 * @namespaces: the requested namespaces that the process got
 */
struct vgpu_spawned {
	pid_t pid;
	int pidfd;
	uint64_t namespaces;
};

/* Call it from one thread at a time.  Return: 0 or a positive errno value. */
int vgpu_spawn(const struct vgpu_spawn *spawn, struct vgpu_spawned *spawned);

#endif /* VGPU_EXECUTOR_SPAWN_H */
