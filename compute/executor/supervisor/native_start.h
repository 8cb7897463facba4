/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of native_start.c for natives.c. */
#ifndef VGPU_EXECUTOR_NATIVE_START_H
#define VGPU_EXECUTOR_NATIVE_START_H

struct vgpu_native;
struct vgpu_supervisor;

/* Frees everything that vgpu_native_start() made, except the cgroup, which has been removed before. */
void vgpu_native_forget(struct vgpu_supervisor *s, struct vgpu_native *native);

#endif /* VGPU_EXECUTOR_NATIVE_START_H */
