/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VGPU_NATIVE_CONTAINED_H
#define VGPU_NATIVE_CONTAINED_H

/**
 * vgpu_contain() - keep this process, and all that it will start, out of the processes that others start
 *
 * In a container, the launcher of a later process is a process like any other until it has a
 * fence.  After this call nothing here can trace it, write into its memory, or mount
 * something over what is started next: Landlock forbids that to all that are in a domain.
 * Nor can it make nodes of devices: in a folder that the host shares with the container,
 * one would be a way to the GPU for processes without a fence.
 *
 * The process has no new privileges afterwards.  Return: 0 or -errno.
 */
int vgpu_contain(void);

#endif /* VGPU_NATIVE_CONTAINED_H */
