/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cgroup for a program that another process has started.  It is made below the program's present
 * cgroup.  So the limits of the program's session or container still apply, and the program can be
 * killed with all that it starts.  This needs the unified hierarchy and Linux 5.14.
 */
#ifndef VGPU_EXECUTOR_ENCLOSURE_H
#define VGPU_EXECUTOR_ENCLOSURE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

/**
 * struct vgpu_enclosure - the cgroup of one program
 * @directory: its path in the file system
 * @path: its path as in /proc/PID/cgroup
 * @cgroup: descriptor of @directory
 * @kill: descriptor of its cgroup.kill
 * @events: descriptor of its cgroup.events, for epoll's EPOLLPRI
 */
struct vgpu_enclosure {
	char directory[PATH_MAX];
	char path[PATH_MAX];
	int cgroup;
	int kill;
	int events;
};

/**
 * vgpu_enclosure_make() - move a process into a new cgroup
 * @name: name of the cgroup
 *
 * Processes that @pid started before stay in their cgroup.  Return: 0 or a positive errno value.
 */
int vgpu_enclosure_make(struct vgpu_enclosure *enclosure, pid_t pid, const char *name);
/* Moves the process back to its former cgroup and removes the new cgroup, if there is one. */
void vgpu_enclosure_undo(struct vgpu_enclosure *enclosure, pid_t pid);
void vgpu_enclosure_kill(const struct vgpu_enclosure *enclosure);
bool vgpu_enclosure_is_empty(const struct vgpu_enclosure *enclosure);
/* Return: false while the cgroup still has processes. */
bool vgpu_enclosure_remove(struct vgpu_enclosure *enclosure);

#endif /* VGPU_EXECUTOR_ENCLOSURE_H */
