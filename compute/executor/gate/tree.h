/* SPDX-License-Identifier: Apache-2.0 */
/* Processes below a process, by /proc. */
#ifndef VGPU_EXECUTOR_TREE_H
#define VGPU_EXECUTOR_TREE_H

#include <stdbool.h>
#include <sys/types.h>

#define VGPU_TREE_ALL	32u

/**
 * vgpu_tree_visit() - call @visit for each descendant of @pid, parents first
 * @process: pidfd of @pid, which is the caller itself or is held by it
 * @depth: 1 for children only
 *
 * @visit gets a pidfd too.  A process of the tenant can end at any moment, and its
 * number can then be anybody's.  The pidfd is of a process that was a descendant when
 * it was open already.
 * A process that is made meanwhile may be missed: repeat until nothing is new.
 * Return: how many were visited.
 */
unsigned int vgpu_tree_visit(pid_t pid, int process, unsigned int depth,
			     void (*visit)(pid_t pid, int process, void *context),
			     void *context);

/* Is each thread of the process stopped, dying or gone? */
bool vgpu_tree_is_stopped(pid_t pid);

#endif /* VGPU_EXECUTOR_TREE_H */
