/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the accelerator is the host's processors, children keep all of them busy.
 * The broker and vgpu-executor must run at once all the same, or each hand-over waits until
 * the kernel takes a processor from a child.  Supervisors see to that themselves.
 */
#ifndef VGPU_EXECUTOR_PRIORITY_H
#define VGPU_EXECUTOR_PRIORITY_H

/*
 * vgpu_priority_raise() - run before ordinary processes from now on, as far as permitted
 *
 * What this process forks is ordinary again.  A real-time class would be faster
 * still, but programs can keep this process busy, and then nothing else would run.
 *
 * Return: 0 or -errno.
 */
int vgpu_priority_raise(void);

#endif /* VGPU_EXECUTOR_PRIORITY_H */
