/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the descendants of a process in /proc. */
#ifndef VGPU_EXECUTOR_TREE_H
#define VGPU_EXECUTOR_TREE_H

#include <stdbool.h>
#include <sys/types.h>

#define VGPU_TREE_ALL	32u

/**
 * vgpu_tree_visit() - call @visit for each descendant of @pid, parents first
 * @process: pidfd of @pid, which is the caller itself or a process that the caller has not reaped
 * @depth: 1 for children only
 *
 * @visit also gets a pidfd.  A process of the tenant can end at any moment, and its PID can then be
 *	reused.  The pidfd refers to a process that was still a descendant after the pidfd was
 *	opened.  A process that is made meanwhile may be missed: repeat until nothing is new.
 *
 * Return: number of processes visited.
 */
unsigned int vgpu_tree_visit(pid_t pid, int process, unsigned int depth,
			     void (*visit)(pid_t pid, int process, void *context),
			     void *context);

/* Is each thread of the process stopped, dying or gone? */
bool vgpu_tree_is_stopped(pid_t pid);

#endif /* VGPU_EXECUTOR_TREE_H */
