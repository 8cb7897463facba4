/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's end of its socket to the supervisor (executor/link.h).
 *
 * A separate thread receives answers, and the main thread sends.
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
	int result;	/* the receiver closes it; -1 for none */
};

struct vgpu_link {
	int socket;
	void (*wake)(void *context);
	void *context;
	pthread_t thread;
	/* used by the main thread only */
	uint64_t sequence;
	uint64_t reserved_bytes;
	/* shared by both threads */
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
 * @wake: called in that thread when vgpu_link_take_compiled() has an answer
 *
 * Return: 0 or a positive errno value.
 */
int vgpu_link_open(struct vgpu_link *link, int socket, void (*wake)(void *context), void *context);

/* Main thread.  Waits for the supervisor's answer.  Return: 0 or ENOMEM. */
int vgpu_link_reserve(struct vgpu_link *link, uint64_t bytes);
void vgpu_link_release(struct vgpu_link *link, uint64_t bytes);

/**
 * vgpu_link_compile() - request a compiler; main thread
 * @job: always closed
 *
 * Return: 0 if vgpu_link_take_compiled() will return the answer, or EAGAIN if VGPU_JOBS_MAX answers
 * are outstanding.
 */
int vgpu_link_compile(struct vgpu_link *link, int job, uint64_t token);
bool vgpu_link_take_compiled(struct vgpu_link *link, struct vgpu_link_compiled *compiled);

/**
 * vgpu_link_relay() - have the supervisor start a relay for this process's ioctl() calls
 * @listener: descriptor from vgpu_sandbox_listen()
 *
 * Call it before vgpu_link_open().  Return: 0 if there is a relay, or a positive errno value.
 */
int vgpu_link_relay(int socket, int listener);

/* Sends SERVING, or FAILED with a reason.  May be called without vgpu_link_open(). */
void vgpu_link_say(int socket, enum vgpu_link_op op, const char *reason);

#endif /* VGPU_EXECUTOR_LINK_CLIENT_H */
