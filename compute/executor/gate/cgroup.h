/* SPDX-License-Identifier: Apache-2.0 */
/* Cgroups of a supervisor: where they are, and the few files of them that the gate uses. */
#ifndef VGPU_EXECUTOR_CGROUP_H
#define VGPU_EXECUTOR_CGROUP_H

#include "executor/gate/gate.h"

/**
 * vgpu_cgroup_of() - the cgroup of a process
 * @controller: of a v1 hierarchy, or NULL for the unified one
 * @mount: of PATH_MAX: where the hierarchy is mounted
 * @own: of PATH_MAX: as /proc/PID/cgroup has it
 *
 * Return: 0 or a positive errno value.
 */
int vgpu_cgroup_of(pid_t pid, const char *controller, char *mount, char *own);

/**
 * vgpu_cgroup_find() - where this process may make cgroups
 * @controller: of a v1 hierarchy, or NULL for the unified one
 * @base: of PATH_MAX
 *
 * Return: 0 or a positive errno value.
 */
int vgpu_cgroup_find(const char *controller, char *base);
/* The directory of this supervisor below @base, which vgpu_gate_sweep() knows. */
void vgpu_cgroup_name(char *path, const char *base);
/* 0 or a positive errno value. */
int vgpu_cgroup_write(int directory, const char *name, const char *text);

/* Both return 0 or a positive errno value. */
int vgpu_cgroup_open(struct vgpu_gate *gate, enum vgpu_gate_kind kind, const char *directory);
int vgpu_cgroup_add(struct vgpu_gate *gate, struct vgpu_gate_member *member);
void vgpu_cgroup_kill(struct vgpu_gate *gate, const struct vgpu_gate_member *member);
/* False while processes are left in it. */
bool vgpu_cgroup_remove(struct vgpu_gate *gate, const struct vgpu_gate_member *member);
int vgpu_cgroup_freeze(struct vgpu_gate *gate, bool freeze);
bool vgpu_cgroup_is_frozen(struct vgpu_gate *gate);

#endif /* VGPU_EXECUTOR_CGROUP_H */
