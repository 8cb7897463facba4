/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bound on the memory that all children of a slice have together, whatever they
 * reserve: the memory controller of cgroup v2 or v1, where one is to be had.  The
 * kernel kills a child that goes beyond it.  One thread.
 */
#ifndef VGPU_EXECUTOR_MEMORY_H
#define VGPU_EXECUTOR_MEMORY_H

#include <limits.h>
#include <stdint.h>

#include "executor/gate/gate.h"

/**
 * struct vgpu_memory - one per supervisor
 * @path: directory of its own in the v1 hierarchy, empty without
 * @directory: with the file of the limit, or -1
 * @procs: cgroup.procs to move children to (v1), or -1
 */
struct vgpu_memory {
	char path[PATH_MAX];
	int directory;
	int procs;
	const char *file;
};

/* 0 or a positive errno value: there is no controller for this supervisor. */
int vgpu_memory_open(struct vgpu_memory *memory, const struct vgpu_gate *gate);
int vgpu_memory_limit(struct vgpu_memory *memory, uint64_t bytes);
/* When no child is left. */
void vgpu_memory_release(struct vgpu_memory *memory);

#endif /* VGPU_EXECUTOR_MEMORY_H */
