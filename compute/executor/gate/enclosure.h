/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cgroup for a program that somebody else has started, below the one that it is in: so it
 * keeps the limits that it has, of a session or a container, and can be killed with all that
 * it starts.  It needs the unified hierarchy, and Linux 5.14.
 */
#ifndef VGPU_EXECUTOR_ENCLOSURE_H
#define VGPU_EXECUTOR_ENCLOSURE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

/**
 * struct vgpu_enclosure - one program's
 * @directory: where it is in the file system
 * @path: as /proc/PID/cgroup has it
 * @cgroup: descriptor of @directory
 * @kill: of its cgroup.kill
 * @events: of its cgroup.events, for epoll's EPOLLPRI
 */
struct vgpu_enclosure {
	char directory[PATH_MAX];
	char path[PATH_MAX];
	int cgroup;
	int kill;
	int events;
};

/**
 * vgpu_enclosure_make() - put a process into a cgroup of its own
 * @name: of the cgroup
 *
 * What the process has started before stays where it is.  Return: 0 or a positive errno value.
 */
int vgpu_enclosure_make(struct vgpu_enclosure *enclosure, pid_t pid, const char *name);
/* Puts the process back to where it was; nothing is left of the cgroup.  It may never have been made. */
void vgpu_enclosure_undo(struct vgpu_enclosure *enclosure, pid_t pid);
void vgpu_enclosure_kill(const struct vgpu_enclosure *enclosure);
bool vgpu_enclosure_is_empty(const struct vgpu_enclosure *enclosure);
/* False while processes are left in it. */
bool vgpu_enclosure_remove(struct vgpu_enclosure *enclosure);

#endif /* VGPU_EXECUTOR_ENCLOSURE_H */
