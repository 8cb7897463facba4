/* SPDX-License-Identifier: Apache-2.0 */
/* What natives.c needs of native_start.c. */
#ifndef VGPU_EXECUTOR_NATIVE_START_H
#define VGPU_EXECUTOR_NATIVE_START_H

struct vgpu_native;
struct vgpu_supervisor;

/* Frees what vgpu_native_start() has made, but for its cgroup, which is gone. */
void vgpu_native_forget(struct vgpu_supervisor *s, struct vgpu_native *native);

#endif /* VGPU_EXECUTOR_NATIVE_START_H */
