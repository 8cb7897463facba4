/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fence: a process beside a native program, which holds NVIDIA's device itself.
 *
 * The kernel stops ioctl() calls of the program, and of all that it starts, and tells the
 * fence of them (seccomp's user notification).  The fence makes what it allows, on copies,
 * with the program's own file, as the relay does for a child (relay.h).  It counts the
 * memory of the GPU that the program has, and knows all its channels, which the gate stops.
 *
 * It keeps a descriptor of its own of each client's file.  So a client ends when the fence
 * lets go of it, and the gate finds the file with the fence, whatever the program does.
 *
 * While the gate is closed, or closing, calls that make, change or free what the gate must
 * know are held back, and all others go on.
 */
#ifndef VGPU_EXECUTOR_FENCE_H
#define VGPU_EXECUTOR_FENCE_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include "executor/gate/rm_objects.h"

/* The launcher's only call, which its supervisor answers: 0 when the fence is up. */
#define VGPU_FENCE_HELLO	_IO(0xfe, 0x56)

/**
 * vgpu_fence_listen() - have a fence answer for the ioctl() calls of this process
 *
 * Before other threads are started.  Return: a descriptor to pass on and to close, or -errno.
 */
int vgpu_fence_listen(void);

/**
 * struct vgpu_fence_page - what fence and supervisor share of one program
 * @closing: the supervisor: the gate is closed, or about to be; then it waits for @busy to be 0
 * @busy: the fence: a call that concerns the gate is under way; set before @closing is looked at
 * @held: the fence: calls that wait for the gate
 * @memory_bytes: the fence: memory of the GPU that the program has
 * @objects: the fence
 */
struct vgpu_fence_page {
	_Atomic uint32_t closing;
	_Atomic uint32_t busy;
	_Atomic uint32_t held;
	_Atomic uint64_t memory_bytes;
	struct rm_objects objects;
};

/* Memory of the GPU of all native programs of a tenant; shared by their fences and the supervisor. */
struct vgpu_fence_quota {
	_Atomic uint64_t limit_bytes;
	_Atomic uint64_t used_bytes;
};

/**
 * struct vgpu_fence - what it is started with; descriptors are its own
 * @listener: where the kernel tells of calls
 * @changed: eventfd that the fence writes when a channel group was made or freed, or @held changed
 * @reopened: eventfd that the supervisor writes when @closing is 0 again
 * @kill: cgroup.kill of the program's cgroup: "1" ends it, which the fence writes when @supervisor has ended
 * @procs: directory of that cgroup
 * @cgroup: its path as /proc/PID/cgroup has it behind "0::"; a process that is not in it or below is refused
 * @supervisor: pidfd of the parent
 * @gpu: minor number of the GPU
 * @number: the program's, for the log
 */
struct vgpu_fence {
	int listener;
	int changed;
	int reopened;
	int kill;
	int procs;
	const char *cgroup;
	int supervisor;
	struct vgpu_fence_page *page;
	struct vgpu_fence_quota *quota;
	int gpu;
	uint64_t number;
};

/* In a new process.  Exits with 0 when nobody has the filter any more. */
_Noreturn void vgpu_fence_run(const struct vgpu_fence *fence);

#endif /* VGPU_EXECUTOR_FENCE_H */
