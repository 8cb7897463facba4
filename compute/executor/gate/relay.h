/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The relay: a process beside a child that makes the child's calls to NVIDIA's driver.
 *
 * The kernel stops each ioctl() of the child and tells the relay of it (seccomp's user
 * notification).  The relay copies what the call is about, decides on the copy (rm_calls.h),
 * makes the call with the copy on the child's open file, and gives the child the result.
 * So what was decided upon is what is done, whatever the child does with its memory.
 *
 * The supervisor starts one relay for each child, because it reads what a tenant writes,
 * and because a call of the driver's can take long.  It is the same user as the child, in the
 * child's user namespace, and has one privilege there: to look into the child.  On a machine
 * without user namespaces it keeps that one of root's.  It lives as long as both.
 *
 * A child that is being stopped stops when its calls are done: the kernel lets a thread
 * wait for the relay's answer before it freezes.  So while a child is stopped, none of its
 * calls is under way, and the table is complete.
 */
#ifndef VGPU_EXECUTOR_RELAY_H
#define VGPU_EXECUTOR_RELAY_H

#include <stdbool.h>
#include <sys/types.h>

#include "executor/gate/rm_objects.h"

/**
 * struct vgpu_relay - what it is started with
 * @listener: from the child: where the kernel tells of its calls
 * @process: the child's pidfd
 * @memory: the child's memory, opened while the child could not have ended
 * @objects: shared with the supervisor
 * @gpu: minor number of the GPU, whose file the relay opens as well: the driver makes a
 *	device only for a process that has it open
 * @number: the child's, for the log
 * @has_namespace: the child has a user namespace, which the relay enters
 * @user: whom to become if it is root and there is none
 * @parent: the supervisor, whose end is the relay's
 */
struct vgpu_relay {
	int listener;
	int process;
	int memory;
	struct rm_objects *objects;
	int gpu;
	uint64_t number;
	bool has_namespace;
	uid_t user;
	pid_t parent;
};

/* In a new process.  Exits with 0 when the child has ended. */
_Noreturn void vgpu_relay_run(const struct vgpu_relay *relay);

#endif /* VGPU_EXECUTOR_RELAY_H */
