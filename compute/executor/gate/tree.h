/* SPDX-License-Identifier: Apache-2.0 */
/* Processes below a process, by /proc. */
#ifndef VGPU_EXECUTOR_TREE_H
#define VGPU_EXECUTOR_TREE_H

#include <stdbool.h>
#include <sys/types.h>

#define VGPU_TREE_ALL	32u

/**
 * vgpu_tree_visit() - call @visit for each descendant of @pid, parents first
 * @depth: 1 for children only
 *
 * A process that is made meanwhile may be missed: repeat until nothing is new.
 * Return: how many were visited.
 */
unsigned int vgpu_tree_visit(pid_t pid, unsigned int depth,
			     void (*visit)(pid_t pid, void *context), void *context);

/* Is each thread of the process stopped, dying or gone? */
bool vgpu_tree_is_stopped(pid_t pid);

#endif /* VGPU_EXECUTOR_TREE_H */
