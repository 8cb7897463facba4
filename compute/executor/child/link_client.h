/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's end of its socket to the supervisor (executor/link.h).
 *
 * A thread receives answers; the main thread sends.  Accelerator memory is reserved
 * in steps, so that most allocations cost no datagram.
 */
#ifndef VGPU_EXECUTOR_LINK_CLIENT_H
#define VGPU_EXECUTOR_LINK_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "executor/link.h"

struct vgpu_link_compiled {
	uint64_t token;
	int status;
	int exit_status;
	int result;	/* the taker closes it; -1 for none */
};

struct vgpu_link {
	int socket;
	void (*wake)(void *context);
	void *context;
	pthread_t thread;
	/* main thread only */
	uint64_t sequence;
	uint64_t reserved_bytes;
	/* between the threads */
	_Atomic uint32_t answered;	/* futex word */
	int32_t answer;
	uint64_t answer_sequence;
	pthread_mutex_t lock;
	struct vgpu_link_compiled compiled[VGPU_JOBS_MAX];
	unsigned int compiled_count;
	struct { uint64_t sequence, token; } jobs[VGPU_JOBS_MAX];
	unsigned int jobs_count;
};

/**
 * vgpu_link_open() - start the thread that receives
 * @wake: called in that thread when vgpu_link_take_compiled() has something
 *
 * Return: 0 or a positive errno value.
 */
int vgpu_link_open(struct vgpu_link *link, int socket, void (*wake)(void *context), void *context);

/* Main thread.  0 or ENOMEM; waits for the supervisor. */
int vgpu_link_reserve(struct vgpu_link *link, uint64_t bytes);
void vgpu_link_release(struct vgpu_link *link, uint64_t bytes);

/**
 * vgpu_link_compile() - ask for a compiler; main thread
 * @job: closed in any case
 *
 * Return: 0, and the answer comes by vgpu_link_take_compiled(); or EAGAIN when
 * VGPU_JOBS_MAX answers are outstanding.
 */
int vgpu_link_compile(struct vgpu_link *link, int job, uint64_t token);
bool vgpu_link_take_compiled(struct vgpu_link *link, struct vgpu_link_compiled *compiled);

/**
 * vgpu_link_relay() - have the supervisor answer for this process's ioctl()
 * @listener: of vgpu_sandbox_listen()
 *
 * Before vgpu_link_open().  Return: 0 when it does, or a positive errno value.
 */
int vgpu_link_relay(int socket, int listener);

/* SERVING, or FAILED with a reason.  Needs no vgpu_link_open(). */
void vgpu_link_say(int socket, enum vgpu_link_op op, const char *reason);

#endif /* VGPU_EXECUTOR_LINK_CLIENT_H */
