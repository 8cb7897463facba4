/* SPDX-License-Identifier: Apache-2.0 */
/* The cgroups of a supervisor: their paths, and the few cgroup files that the gate uses. */
#ifndef VGPU_EXECUTOR_CGROUP_H
#define VGPU_EXECUTOR_CGROUP_H

#include "executor/gate/gate.h"

/**
 * vgpu_cgroup_of() - find the cgroup of a process
 * @controller: controller of a v1 hierarchy, or NULL for the unified hierarchy
 * @mount: out: mount point of the hierarchy; PATH_MAX bytes
 * @own: out: path as in /proc/PID/cgroup; PATH_MAX bytes
 *
 * Return: 0 or a positive errno value.
 */
int vgpu_cgroup_of(pid_t pid, const char *controller, char *mount, char *own);

/**
 * vgpu_cgroup_find() - find where this process may make cgroups
 * @controller: controller of a v1 hierarchy, or NULL for the unified hierarchy
 * @base: out: path of PATH_MAX bytes
 *
 * Return: 0 or a positive errno value.
 */
int vgpu_cgroup_find(const char *controller, char *base);
/* Writes the path of this supervisor's directory below @base.  vgpu_gate_sweep() recognizes its name. */
void vgpu_cgroup_name(char *path, const char *base);
/* Return: 0 or a positive errno value. */
int vgpu_cgroup_write(int directory, const char *name, const char *text);

/* vgpu_cgroup_open() and vgpu_cgroup_add() return 0 or a positive errno value. */
int vgpu_cgroup_open(struct vgpu_gate *gate, enum vgpu_gate_kind kind, const char *directory);
int vgpu_cgroup_add(struct vgpu_gate *gate, struct vgpu_gate_member *member);
void vgpu_cgroup_kill(struct vgpu_gate *gate, const struct vgpu_gate_member *member);
/* Return: false while the cgroup still has processes. */
bool vgpu_cgroup_remove(struct vgpu_gate *gate, const struct vgpu_gate_member *member);
int vgpu_cgroup_freeze(struct vgpu_gate *gate, bool freeze);
bool vgpu_cgroup_is_frozen(struct vgpu_gate *gate);

#endif /* VGPU_EXECUTOR_CGROUP_H */
