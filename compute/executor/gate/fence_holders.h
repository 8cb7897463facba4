/* SPDX-License-Identifier: Apache-2.0 */
/* Who has an open file of the program's: processes can hand files to each other. */
#ifndef VGPU_EXECUTOR_FENCE_HOLDERS_H
#define VGPU_EXECUTOR_FENCE_HOLDERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "executor/gate/fence.h"

enum fence_held {
	FENCE_HELD_BY_NOBODY,
	FENCE_HELD_INSIDE,	/* by a process of the program */
	FENCE_HELD_OUTSIDE,	/* by one that is not, perhaps by others as well */
};

/**
 * fence_find_holders() - who has each of some files
 * @files: the fence's own descriptors, @count of them
 * @held: out: the same number
 *
 * Looks once through all processes of the host, but for the fence and its supervisor.
 */
void fence_find_holders(const struct vgpu_fence *fence, const int *files, unsigned int count,
			enum fence_held *held);

/* Is a process or thread in the program's cgroup, or below it? */
bool fence_is_inside(const struct vgpu_fence *fence, pid_t pid);

#endif /* VGPU_EXECUTOR_FENCE_HOLDERS_H */
