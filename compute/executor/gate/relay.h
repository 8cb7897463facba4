/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The relay: a process that accompanies a child and makes the child's calls to NVIDIA's driver.
 *
 * The kernel stops each ioctl() of the child and notifies the relay (seccomp user notification).
 * The relay copies the arguments, decides on the copy (rm_calls.h), makes the call with the copy on
 * the child's open file, and gives the child the result.  So the driver executes exactly the
 * arguments that were checked, whatever the child does with its memory.
 *
 * The supervisor starts one relay for each child, because a relay parses input of a tenant, and
 * because a call to the driver can take long.  The relay has the child's user and is in the child's
 * user namespace.  Its only privilege there is to look into the child.  On a machine without user
 * namespaces it keeps this one privilege of root.  It ends with the child or with the supervisor.
 *
 * A child that is being stopped stops when its calls are done: the kernel lets a thread wait for
 * the relay's answer before it freezes the thread.  So while a child is stopped, none of its calls
 * is in progress, and the table of objects is complete.
 */
#ifndef VGPU_EXECUTOR_RELAY_H
#define VGPU_EXECUTOR_RELAY_H

#include <stdbool.h>
#include <sys/types.h>

#include "executor/gate/rm_objects.h"

/**
 * struct vgpu_relay - arguments of a relay
 * @listener: from the child: descriptor on which the kernel notifies the relay of calls
 * @process: the child's pidfd
 * @memory: the child's memory, opened before the child could be reaped and its PID reused
 * @objects: shared with the supervisor
 * @gpu: minor number of the GPU.  The relay opens its file as well, because the driver makes a
 *	device object only for a process that has the device open.
 * @number: number of the child, for the log
 * @has_namespace: the child has a user namespace, which the relay enters
 * @user: user to change to if the relay is root and there is no user namespace
 * @parent: PID of the supervisor; the relay ends when the supervisor does
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

/* Runs in a new process.  Exits with 0 when the child has ended. */
_Noreturn void vgpu_relay_run(const struct vgpu_relay *relay);

#endif /* VGPU_EXECUTOR_RELAY_H */
