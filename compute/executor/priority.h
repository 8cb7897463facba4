/* SPDX-License-Identifier: Apache-2.0 */
/*
 * If the accelerator is the host's processors, children keep all processors busy.  The broker and
 * vgpu-executor must still run at once.  Otherwise each handover waits until the kernel preempts a
 * child.  Supervisors raise their own priority.
 */
#ifndef VGPU_EXECUTOR_PRIORITY_H
#define VGPU_EXECUTOR_PRIORITY_H

/*
 * vgpu_priority_raise() - run before ordinary processes from now on, if permitted
 *
 * Child processes get the ordinary priority again.  A real-time class would be even faster, but
 * programs can keep this process busy, and then nothing else would run.
 *
 * Return: 0 or -errno.
 */
int vgpu_priority_raise(void);

#endif /* VGPU_EXECUTOR_PRIORITY_H */
