/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VGPU_NATIVE_CONTAINED_H
#define VGPU_NATIVE_CONTAINED_H

/**
 * vgpu_contain() - keep this process, and all that it starts, from interfering with programs that
 * others start
 *
 * In a container, the launcher of a later program is an ordinary process until it has a fence.  After
 * this call this process cannot trace that launcher, write into its memory, or mount something over the
 * files that it will execute, because Landlock forbids such accesses to every process in a domain.  Nor
 * can it create device nodes.  In a folder that the host shares with the container, a device node would
 * give processes without a fence a way to the GPU.
 *
 * The process has no new privileges afterwards.  Return: 0 or -errno.
 */
int vgpu_contain(void);

#endif /* VGPU_NATIVE_CONTAINED_H */
