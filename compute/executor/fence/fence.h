/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fence: a process that accompanies a native program, which has NVIDIA's device open itself.
 *
 * The kernel stops the ioctl() calls of the program and of all its descendants, and notifies the
 * fence (seccomp user notification).  The fence makes the calls that it permits, on copies of the
 * arguments and on the program's own file, like the relay does for a child (relay.h).  It counts
 * the program's GPU memory, and knows all of its channels, which the gate stops.
 *
 * The fence keeps its own descriptor of each client's file.  So a client ends only when the fence
 * closes that descriptor, and the gate finds the file in the fence whatever the program does.
 *
 * While the gate is closed or closing, the fence holds back calls that make, change or free objects
 * that the gate must know.  All other calls continue.
 */
#ifndef VGPU_EXECUTOR_FENCE_H
#define VGPU_EXECUTOR_FENCE_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include "executor/gate/rm_objects.h"

/* The launcher's only ioctl().  The supervisor answers it, with 0 when the fence runs. */
#define VGPU_FENCE_HELLO	_IO(0xfe, 0x56)

/**
 * vgpu_fence_listen() - install the filter that passes this process's ioctl() calls to a fence
 *
 * Call it before other threads are started.  Return: a descriptor to send to the supervisor and
 * then close, or -errno.
 */
int vgpu_fence_listen(void);

/**
 * struct vgpu_fence_page - memory that the fence and the supervisor share for one program
 * @closing: written by the supervisor: the gate is closed or about to close.  The supervisor then
 *	waits until @busy is 0.
 * @busy: written by the fence: a call that concerns the gate is in progress; set before the fence
 *	reads @closing
 * @held: written by the fence: number of calls that wait for the gate
 * @memory_bytes: written by the fence: GPU memory that the program has
 * @objects: written by the fence
 */
struct vgpu_fence_page {
	_Atomic uint32_t closing;
	_Atomic uint32_t busy;
	_Atomic uint32_t held;
	_Atomic uint64_t memory_bytes;
	struct rm_objects objects;
};

/* GPU memory of all native programs of a tenant; shared by their fences and the supervisor. */
struct vgpu_fence_quota {
	_Atomic uint64_t limit_bytes;
	_Atomic uint64_t used_bytes;
};

/**
 * struct vgpu_fence - arguments of a fence, which owns the descriptors
 * @listener: descriptor on which the kernel notifies the fence of calls
 * @changed: eventfd that the fence writes when a channel group was made or freed, or @held changed
 * @reopened: eventfd that the supervisor writes when @closing is 0 again
 * @kill: cgroup.kill of the program's cgroup; the fence writes "1" when @supervisor has ended,
 *	which kills the program
 * @procs: directory of that cgroup
 * @cgroup: path of that cgroup as in /proc/PID/cgroup after "0::"; calls of a process outside of it
 *	are refused
 * @supervisor: pidfd of the parent
 * @gpu: minor number of the GPU
 * @number: number of the program, for the log
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

/* Runs in a new process.  Exits with 0 when no process has the filter any more. */
_Noreturn void vgpu_fence_run(const struct vgpu_fence *fence);

#endif /* VGPU_EXECUTOR_FENCE_H */
