/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the processes that have one of the program's files open.  Processes can pass files to each other. */
#ifndef VGPU_EXECUTOR_FENCE_HOLDERS_H
#define VGPU_EXECUTOR_FENCE_HOLDERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "executor/fence/fence.h"

enum fence_held {
	FENCE_HELD_BY_NOBODY,
	FENCE_HELD_INSIDE,	/* by a process of the program */
	FENCE_HELD_OUTSIDE,	/* by a process outside of the program, perhaps also inside */
};

/**
 * fence_find_holders() - find out, for each of several files, whether a process has it open
 * @files: the fence's own descriptors, @count of them
 * @held: out: one entry for each file
 *
 * Searches all processes of the host once, except the fence and its supervisor.
 */
void fence_find_holders(const struct vgpu_fence *fence, const int *files, unsigned int count,
			enum fence_held *held);

/* Is a process or thread in the program's cgroup, or below it? */
bool fence_is_inside(const struct vgpu_fence *fence, pid_t pid);

#endif /* VGPU_EXECUTOR_FENCE_HOLDERS_H */
