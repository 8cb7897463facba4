/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts a process in namespaces of its own; the supervisor calls this.
 *
 * The process dies when the supervisor dies, and what it started dies with it where
 * it has a PID namespace.  It has the given descriptors from 3 on, /dev/null as
 * standard input, and nothing else of the supervisor.
 */
#ifndef VGPU_EXECUTOR_SPAWN_H
#define VGPU_EXECUTOR_SPAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Whom a child is on the host where the supervisor is root. */
#define VGPU_NOBODY	65534u
#define VGPU_SPAWN_DESCRIPTORS	8u

/**
 * struct vgpu_spawn - what to start
 * @program: a descriptor of the program
 * @arguments: ends with NULL.  The one that is @namespaces_argument is replaced by
 *	the names of the namespaces that the process got, with commas between them.
 * @descriptors: become 3, 4, ...
 * @output: becomes standard output and error
 * @cgroup: descriptor of a cgroup v2 directory to be born in, or -1
 * @cgroup_procs: descriptors of cgroup.procs to move it to before it runs, or -1
 * @namespaces: to ask for, as flags of clone(2)
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
 * struct vgpu_spawned - what was started
 * @pidfd: the caller closes it
 * @namespaces: what the process got of those that were asked for
 */
struct vgpu_spawned {
	pid_t pid;
	int pidfd;
	uint64_t namespaces;
};

/* 0, or a positive errno value.  One thread at a time. */
int vgpu_spawn(const struct vgpu_spawn *spawn, struct vgpu_spawned *spawned);

#endif /* VGPU_EXECUTOR_SPAWN_H */
