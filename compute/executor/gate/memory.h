/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit on the total memory of all children of a slice, whatever they reserve.  It uses the
 * memory controller of cgroup v2 or v1, where one is available.  The kernel kills a child that
 * exceeds the limit.  All calls are made by one thread.
 */
#ifndef VGPU_EXECUTOR_MEMORY_H
#define VGPU_EXECUTOR_MEMORY_H

#include <limits.h>
#include <stdint.h>

#include "executor/gate/gate.h"

/**
 * struct vgpu_memory - one per supervisor
 * @path: the supervisor's own directory in the v1 hierarchy; empty if there is none
 * @directory: descriptor of the directory with the limit's file, or -1
 * @procs: cgroup.procs to move children to (v1), or -1
 */
struct vgpu_memory {
	char path[PATH_MAX];
	int directory;
	int procs;
	const char *file;
};

/* Return: 0, or a positive errno value if no controller is available to this supervisor. */
int vgpu_memory_open(struct vgpu_memory *memory, const struct vgpu_gate *gate);
int vgpu_memory_limit(struct vgpu_memory *memory, uint64_t bytes);
/* Call it when no child is left. */
void vgpu_memory_release(struct vgpu_memory *memory);

#endif /* VGPU_EXECUTOR_MEMORY_H */
