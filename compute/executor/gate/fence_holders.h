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

/* Looks through all processes of the host, but for the fence and its supervisor. */
enum fence_held fence_find_holder(const struct vgpu_fence *fence, int file);

/* Is a process or thread in the program's cgroup, or below it? */
bool fence_is_inside(const struct vgpu_fence *fence, pid_t pid);

#endif /* VGPU_EXECUTOR_FENCE_HOLDERS_H */
